#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/mcp/impl/calls.ipp>
#include <ipybox/mcp/impl/client.ipp>
#include <ipybox/mcp/impl/client_incoming.ipp>
#include <ipybox/mcp/impl/client_opening.ipp>
#include <ipybox/mcp/impl/client_requests.ipp>
#include <ipybox/mcp/impl/client_subscriptions.ipp>
#include <ipybox/mcp/impl/client_tasks.ipp>
#include <ipybox/mcp/impl/engine.ipp>
#include <ipybox/mcp/impl/handler.ipp>
#include <ipybox/mcp/impl/http_server.ipp>
#include <ipybox/mcp/impl/http_server_guard.ipp>
#include <ipybox/mcp/impl/http_server_stream.ipp>
#include <ipybox/mcp/impl/http_transport.ipp>
#include <ipybox/mcp/impl/http_transport_streams.ipp>
#include <ipybox/mcp/impl/server.ipp>
#include <ipybox/mcp/impl/tasks.ipp>
