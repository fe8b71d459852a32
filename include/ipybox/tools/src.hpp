#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/tools/impl/apigen.ipp>
#include <ipybox/tools/impl/package_writer.ipp>
#include <ipybox/tools/impl/remembered_servers.ipp>
#include <ipybox/tools/impl/server_identity.ipp>
#include <ipybox/tools/impl/server_start.ipp>
#include <ipybox/tools/impl/tool_progress.ipp>
#include <ipybox/tools/impl/tool_questions.ipp>
#include <ipybox/tools/impl/tool_server.ipp>
#include <ipybox/tools/impl/tool_server_mcp.ipp>
#include <ipybox/tools/impl/tool_server_programs.ipp>
