#pragma once
// All of ipybox.
#include <ipybox/apigen.hpp>
#include <ipybox/approval.hpp>
#include <ipybox/approval_config.hpp>
#include <ipybox/blocking.hpp>
#include <ipybox/code_executor.hpp>
#include <ipybox/config.hpp>
#include <ipybox/error.hpp>
#include <ipybox/kernel_client.hpp>
#include <ipybox/kernel_gateway.hpp>
#include <ipybox/log.hpp>
#include <ipybox/mcp_client.hpp>
#include <ipybox/network_proxy.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/registry.hpp>
#include <ipybox/server_sandbox.hpp>
#include <ipybox/tool_server.hpp>
