#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/approval/impl/audit_chain.ipp>
#include <ipybox/approval/impl/audit_head.ipp>
#include <ipybox/approval/impl/audit_key.ipp>
#include <ipybox/approval/impl/audit_log.ipp>
#include <ipybox/approval/impl/audit_verification.ipp>
#include <ipybox/approval/impl/channel.ipp>
#include <ipybox/approval/impl/console.ipp>
#include <ipybox/approval/impl/granted_rules.ipp>
#include <ipybox/approval/impl/remembered_rules.ipp>
#include <ipybox/approval/impl/rule_conditions.ipp>
#include <ipybox/approval/impl/rules.ipp>
#include <ipybox/approval/impl/tool_binding.ipp>
