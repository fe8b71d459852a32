#pragma once
// All that is compiled once in a program; see compilation.hpp.
#include <ipybox/approval/src.hpp>
#include <ipybox/detail/src.hpp>
#include <ipybox/executor/src.hpp>
#include <ipybox/impl/async.ipp>
#include <ipybox/impl/config.ipp>
#include <ipybox/mcp/src.hpp>
#include <ipybox/net/src.hpp>
#include <ipybox/oauth/src.hpp>
#include <ipybox/sandbox_kit/src.hpp>
#include <ipybox/tools/src.hpp>
