#pragma once
// What the approval page shows of a call, and the rules that it offers. Nothing here waits.
#include <ipybox/approval/granted_rules.hpp>
#include <ipybox/approval_policy.hpp>
#include <string>

namespace ipybox::app {

// Each argument as {"name", "json": its JSON text with all digits, "text": if it is a string}.
json::array shown_arguments(const json::object& sent);

// What a call would do to a file of this machine, if it looks like one that writes a file: {"path",
// "leads_to", "before", "after", "problem"}; null for other calls. Reads the file: at most
// max_file_shown bytes, of a regular file.
json::value file_change(const ToolCall& call);
inline constexpr std::size_t max_file_shown = std::size_t{1} << 20;

// Members of "Call" of the page's protocol that follow from the call alone.
json::object shown_call(const ToolCall& call);

// What the page may ask to be allowed beyond the one call: {"scope", "lasts", "hours",
// "conditions"}.
struct PageGrant {
    json::object rule;  // as in policies, without the time of the lifetime
    GrantLifetime lifetime;
    std::string by;  // such as "page: this tool, for the session"
};
// Throws Error: bad_argument (what the page sent is malformed, or no such grant exists for the
// call).
PageGrant read_grant(const ToolCall& call, const json::object& grant);

}  // namespace ipybox::app
