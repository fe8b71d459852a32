#pragma once
// Params, which fit the schema, as the classes of the core want them.
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/tools/tool_server.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "../durations.hpp"

namespace ipybox::app::host {

std::string text_of(const json::object& params, std::string_view key, std::string_view absent = {});
bool flag_of(const json::object& params, std::string_view key, bool absent = false);
Duration seconds_of(const json::object& params, std::string_view key, double absent);
std::uint64_t count_of(const json::object& params, std::string_view key, std::uint64_t absent);
std::vector<std::string> texts_of(const json::object& params, std::string_view key);
Variables variables_of(const json::object& params, std::string_view key);
// Moved out of params; empty when absent.
json::object take_object(json::object& params, std::string_view key);

// Changes `options` where params say so; all but what tells the client of things. heads: called
// with the audit log's file and each signed head. Throws Error: bad_argument, io_error (the audit
// log).
using HeadHook = std::function<void(const std::string& file, const std::string& head)>;
void set_options(CodeExecutorOptions& options, json::object params, const HeadHook& heads);
// The same for a tool server.
void set_options(ToolServerOptions& options, const json::object& params, const HeadHook& heads);

}  // namespace ipybox::app::host
