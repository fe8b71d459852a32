#pragma once
#include <ipybox/detail/json_schema.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox::detail {

IPYBOX_DECL std::optional<std::string> validate(const json::value& schema,
                                                const json::value& value) {
    SchemaDocument document(schema);
    return SchemaValidator(document).problem(document.root(), value);
}

}  // namespace ipybox::detail
