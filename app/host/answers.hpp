#pragma once
// What the core says, as protocol.json has it.
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/tools/tool_runner.hpp>
#include <string>
#include <vector>

namespace ipybox::app::host {

json::object result_json(CodeExecutionResult result, bool streams);
json::object display_json(CodeExecutionDisplay display);
json::object violation_json(const Violation& violation);
json::object head_json(const std::string& file, const std::string& head);
json::object span_json(const Span& span);
// session, tools: handles, one of them empty.
json::object progress_json(const std::string& session, const std::string& tools,
                           const std::string& call, const CallProgress& report);
json::object call_json(const ToolCall& call);
json::object variables_json(const std::vector<CodeVariable>& variables);
json::object completions_json(const CodeCompletions& found);
json::object servers_json(const std::vector<ServerInfo>& servers);
json::object tools_json(std::vector<ToolInfo> tools);
json::object output_json(ToolOutput output);
// Null for an empty handle.
json::value handle_json(const std::string& handle);
json::array texts_json(const std::vector<std::string>& texts);

// An object of one member.
template <class Value>
json::object only(std::string_view key, Value&& value) {
    json::object object;
    object.emplace(key, std::forward<Value>(value));
    return object;
}

}  // namespace ipybox::app::host
