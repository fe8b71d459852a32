#pragma once
// What a tool was when a person allowed it, so that a tool that changed is asked about again.
#include <boost/json/object.hpp>
#include <ipybox/approval_policy.hpp>
#include <map>
#include <string>
#include <string_view>

namespace ipybox::approval {

// As ToolCall::definition_hash. schema: empty if the tool states none.
std::string definition_hash(const json::object& schema, std::string_view description,
                            const json::object& annotations);

// The server, and those of its tools that a rule is about, as they were when it was made.
class ToolBinding {
public:
    // one_tool: only that of the call; else all that the server has now, or, if that is not known,
    // only that of the call.
    static ToolBinding of(const ToolCall& call, bool one_tool);
    // What to_json() gave. Throws Error: bad_config (it is malformed; names the place).
    static ToolBinding read(const json::value& value, const std::string& place);
    json::object to_json() const;

    const std::string& server_identity() const noexcept { return server_; }
    // By their names, with the hash of each definition.
    const std::map<std::string, json::object, std::less<>>& tools() const noexcept {
        return tools_;
    }
    // What is different now, on one line that is safe to show: "the tool changed since you allowed
    // it: description, parameters: +force". Empty: it is what was allowed.
    std::string changes(const ToolCall& call) const;

private:
    std::string server_;
    std::map<std::string, json::object, std::less<>> tools_;
};

}  // namespace ipybox::approval

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/tool_binding.ipp>
#endif
