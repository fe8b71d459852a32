#pragma once
// JSON Schema as the rest of ipybox needs it.
#include <boost/json/value.hpp>
#include <ipybox/detail/schema_document.hpp>
#include <ipybox/detail/schema_validator.hpp>
#include <optional>
#include <string>

namespace ipybox::detail {

// Checks `value` against `schema` without any reference outside it. Returns nullopt when it is
// valid, otherwise a sentence that starts with the JSON pointer of the culprit. Keywords that are
// malformed are ignored, and so are patterns that need back-references, Unicode properties or
// flags, which cannot be matched within bounds; `format` is not checked.
std::optional<std::string> validate(const json::value& schema, const json::value& value);

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/json_schema.ipp>
#endif
