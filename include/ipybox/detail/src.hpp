#pragma once
// The bodies of this room: compiled once in a program; see compilation.hpp.
#include <ipybox/detail/impl/canonical_json.ipp>
#include <ipybox/detail/impl/json_number.ipp>
#include <ipybox/detail/impl/json_schema.ipp>
#include <ipybox/detail/impl/pattern.ipp>
#include <ipybox/detail/impl/schema_document.ipp>
#include <ipybox/detail/impl/schema_merge.ipp>
#include <ipybox/detail/impl/schema_model.ipp>
#include <ipybox/detail/impl/schema_validator.ipp>
