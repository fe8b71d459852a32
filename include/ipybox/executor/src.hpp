#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/executor/impl/checks.ipp>
#include <ipybox/executor/impl/code_checker.ipp>
#include <ipybox/executor/impl/code_executor.ipp>
#include <ipybox/executor/impl/input_request.ipp>
#include <ipybox/executor/impl/kernel_spec.ipp>
#include <ipybox/executor/impl/packages.ipp>
#include <ipybox/executor/impl/results.ipp>
#include <ipybox/executor/impl/runs.ipp>
#include <ipybox/executor/impl/server_sandbox.ipp>
#include <ipybox/executor/impl/service.ipp>
#include <ipybox/executor/impl/service_asking.ipp>
#include <ipybox/executor/impl/service_catalogue.ipp>
#include <ipybox/executor/impl/service_sessions.ipp>
#include <ipybox/executor/impl/service_tools.ipp>
#include <ipybox/executor/impl/session.ipp>
#include <ipybox/executor/impl/session_files.ipp>
