#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/sandbox_kit/impl/cgroup.ipp>
#include <ipybox/sandbox_kit/impl/guest_view.ipp>
#include <ipybox/sandbox_kit/impl/kernel_policy.ipp>
#include <ipybox/sandbox_kit/impl/launcher.ipp>
#include <ipybox/sandbox_kit/impl/network_proxy.ipp>
#include <ipybox/sandbox_kit/impl/process.ipp>
#include <ipybox/sandbox_kit/impl/program_judgement.ipp>
#include <ipybox/sandbox_kit/impl/project_quota.ipp>
#include <ipybox/sandbox_kit/impl/protected_files.ipp>
#include <ipybox/sandbox_kit/impl/sandbox_config.ipp>
#include <ipybox/sandbox_kit/impl/stdio_mux.ipp>
#include <ipybox/sandbox_kit/impl/writable_places.ipp>
