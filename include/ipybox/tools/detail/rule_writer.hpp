#pragma once
// A schema, or some keywords of it, as the Python literal that rule() of ipybox_kernel checks.
#include <algorithm>
#include <cstddef>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/schema_document.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::detail {

// Which patterns may be tried in Python, whose engine backtracks; the host has one that does not.
class PatternJudge {
public:
    bool allows(std::string_view pattern) {
        static constexpr std::size_t max_length = 2'000;
        const auto [it, fresh] = known_.try_emplace(pattern, false);
        if (fresh && pattern.size() <= max_length && steps_ > 0)
            it->second = Pattern::backtracking(pattern, steps_) == Pattern::Backtracking::bounded;
        return it->second;
    }

private:
    std::map<std::string_view, bool> known_;
    std::size_t steps_ = 3'000'000;  // for all patterns of a schema
};

// Writes a schema, or some keywords of it, as the Python literal that rule() checks. References go
// to a table beside it, so that recursion and repetition cost nothing.
class RuleWriter {
public:
    static constexpr std::size_t max_size = 8'000;

    RuleWriter(SchemaDocument& document, PatternJudge& patterns)
        : document_(document), patterns_(patterns) {}

    // Empty when the schema says nothing or is too large for a rule.
    std::string write(const Schema& schema) {
        auto out = schema.never ? std::string("False") : body(schema, 0);
        for (std::size_t i = 0; i < pending_.size() && size_ <= max_size; ++i)
            definitions_ +=
                (i ? ", " : "") + python_string(std::to_string(i)) + ": " + node(*pending_[i], 0);
        if (size_ > max_size || out == "{}") return {};
        if (!definitions_.empty()) {
            out.pop_back();
            out += ", \"$defs\": {" + definitions_ + "}}";
        }
        return out;
    }

private:
    std::string node(const Schema& schema, int depth) {
        if (schema.never) return "False";
        if (schema.trivial()) return "True";
        return body(schema, depth);
    }

    std::string body(const Schema& schema, int depth) {
        std::string out;
        const auto add = [&](std::string_view key, const std::string& value) {
            out += (out.empty() ? "{" : ", ") + python_string(key) + ": " + value;
            size_ += key.size() + value.size() / (1 + static_cast<std::size_t>(depth)) + 6;
        };
        if (depth > 30) size_ = max_size + 1;
        if (size_ > max_size) return "{}";
        if (schema.ref) {
            const auto* target = document_.target(schema);
            if (target && !target->trivial()) add("$ref", reference(target));
        }
        if (schema.types) add("type", types(schema.types));
        for (const auto& info : key_table) {
            if (const auto* value = schema.value(info.key))
                add(info.name, info.key == Key::pattern ? pattern(view(value->get_string()))
                                                        : python_literal(*value));
            if (const auto* child = schema.schema(info.key))
                add(info.name, node(*child, depth + 1));
            if (schema.lists.count(info.key)) add(info.name, list(schema.list(info.key), depth));
            if (schema.named.count(info.key))
                add(info.name, named(info.key, schema.names(info.key), depth));
        }
        if (!schema.required.empty()) add("required", strings(schema.required));
        if (!schema.dependent_required.empty()) {
            std::string needs;
            for (const auto& [name, others] : schema.dependent_required)
                needs += (needs.empty() ? "" : ", ") + python_string(name) + ": " + strings(others);
            add("dependentRequired", '{' + needs + '}');
        }
        return out.empty() ? "{}" : out + '}';
    }

    std::string list(const std::vector<Schema::Ptr>& schemas, int depth) {
        std::string out;
        for (const auto* schema : schemas)
            out += (out.empty() ? "" : ", ") + node(*schema, depth + 1);
        return '[' + out + ']';
    }
    std::string named(Key key, const Schema::Named& schemas, int depth) {
        std::string out;
        for (const auto& [name, schema] : schemas)
            out += (out.empty() ? "" : ", ") +
                   (key == Key::pattern_properties ? pattern(name) : python_string(name)) + ": " +
                   node(*schema, depth + 1);
        return '{' + out + '}';
    }
    // None: one that is not for Python to try.
    std::string pattern(std::string_view text) {
        return patterns_.allows(text) ? python_string(python_pattern(text)) : "None";
    }
    static std::string strings(const Schema::Names& names) {
        std::string out;
        for (const auto& name : names) out += (out.empty() ? "" : ", ") + python_string(name);
        return '[' + out + ']';
    }
    static std::string types(unsigned mask) {
        Schema::Names names;
        for (const auto& [name, bit] : json_types)
            if (mask & bit) names.push_back(name);
        return names.size() == 1 ? python_string(names[0]) : strings(names);
    }
    std::string reference(Schema::Ptr target) {
        auto it = std::find(pending_.begin(), pending_.end(), target);
        const auto index = it - pending_.begin();
        if (it == pending_.end()) pending_.push_back(target);
        return python_string(std::to_string(index));
    }

    SchemaDocument& document_;
    PatternJudge& patterns_;
    std::vector<Schema::Ptr> pending_;
    std::string definitions_;
    std::size_t size_ = 0;
};

}  // namespace ipybox::detail
