#pragma once
// Requests that handlers answer: from their start, over the questions that they ask the client, to
// the answer.
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/mcp/engine.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <optional>
#include <string_view>

namespace ipybox {

namespace mcp {

// Clients below 2025-06-18 know neither links nor, below 2025-03-26, audio: they get text.
void simplify_content(json::array& content, std::string_view revision);

// What a string stands for where a value of `type` is wanted; nothing when it stands for none.
std::optional<json::value> value_in_string(std::string_view text, std::string_view type);

// Puts in the place of arguments that are strings what they stand for, where the schema wants one
// other type.
void parse_arguments(json::object& arguments, const json::value& schema);

void check_size(const McpCall& call, const json::object& answer);

}  // namespace mcp

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/mcp/impl/calls.ipp>
#include <ipybox/mcp/impl/tasks.ipp>
#endif
