#pragma once
// A JSON Schema document (draft-07 and 2020-12): read leniently, dereferenced, normalised, merged.
// Malformed keywords are ignored, network references are never fetched, and nesting, size and work
// are bounded whatever a server sends.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <ipybox/detail/pattern.hpp>
#include <ipybox/detail/schema_model.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipybox::detail {

// A schema document with everything its references reach. Keeps a reference to the JSON value.
class SchemaDocument {
public:
    static constexpr int max_depth = 100;
    static constexpr std::size_t max_schemas = 30'000;
    static constexpr std::size_t max_merging = 1'000'000;  // properties looked at by merges

    // Throws Error: bad_argument (the document holds more than max_schemas schemas). What is nested
    // deeper than max_depth counts as `true`.
    explicit SchemaDocument(const json::value& root);
    SchemaDocument(const SchemaDocument&) = delete;
    SchemaDocument& operator=(const SchemaDocument&) = delete;

    const Schema& root() const { return *root_; }

    // Where `schema.ref` leads; nullptr when nowhere in this document.
    Schema::Ptr target(const Schema& schema);

    // The schemas that together mean a schema: its own keywords apart from the rest.
    struct Conjuncts {
        std::vector<Schema::Ptr> others;  // where its reference leads, its allOf
        Schema::Ptr own;
    };

    // Closed objects that no value can satisfy together (a common mistake: the intersection of two
    // objects with additionalProperties false) are closed as one instead.
    const Conjuncts& conjuncts(const Schema& schema);

    // The schema with its references followed and its allOf merged, as far as a merge can say it;
    // the rest stays in all_of. Schemas that mean the same through references are the same object.
    const Schema& effective(const Schema& schema);

    // A schema that holds when all of `parts` (any of, for any_of) do; the same object every time.
    Schema::Ptr combine(Key key, const std::vector<Schema::Ptr>& parts);

    // The pattern compiled; nullptr when it cannot be matched within bounds. `text` must live as
    // long as the document.
    const Pattern* pattern(std::string_view text);

    // Keeps a schema made by the caller alive as long as the document.
    Schema::Ptr add(Schema schema);

private:
    class Merge;
    Schema merge(std::vector<Schema::Ptr> parts, const Schema& own);

    struct Location {
        const json::value* value;
        const std::string* base;
    };

    const std::string* base_of(const json::object& object, const std::string* base);

    // RFC 3986 as far as schema identifiers need it; nothing is ever fetched.
    static std::string resolve_uri(std::string_view base, std::string_view uri);

    static std::string unescape(std::string_view token);

    Location follow(Location from, std::string_view pointer);

    Location locate(std::string_view ref, const std::string* base);

    // Finds the embedded resources and anchors.
    void index(const json::value& value, const std::string* base, int depth);

    Schema::Ptr compile(const json::value& value, const std::string* base, int depth);

    void compile_object(Schema& schema, const json::object& object, const std::string* base,
                        int depth);

    // What the schemas inside one object have in common.
    struct SubSchemas {
        SchemaDocument& document;
        const std::string* base;
        int depth;
        Schema::Ptr operator()(const json::value& value) const;
    };

    static Schema::Names strings(const json::array& array);

    static void read_types(Schema& schema, const json::object& object);

    void read_key(Schema& schema, const KeyInfo& info, const json::value& value,
                  const SubSchemas& sub);

    static void read_older_forms(Schema& schema, const json::object& object, const SubSchemas& sub);

    // Whether some schema of the document asks what others have judged.
    bool looks_into_branches();
    static bool names_unevaluated(const json::value& value, int depth);

    static bool closed(const Schema& schema);

    void open_intersection(Conjuncts& conjuncts);

    const json::value& json_;
    bool draft7_ = false;
    std::set<std::string> bases_;
    const std::string* base_ = nullptr;
    std::map<std::string, Location> identified_;
    std::deque<Schema> schemas_;
    const Schema any_{};
    Schema::Ptr root_ = nullptr;
    int following_ = 0;  // nested references
    std::size_t merging_ = 0;
    std::optional<bool> looks_into_branches_;
    std::unordered_map<const json::value*, Schema::Ptr> compiled_;
    std::unordered_map<Schema::Ptr, Schema::Ptr> targets_, effective_;
    std::unordered_map<Schema::Ptr, Conjuncts> conjuncts_;
    std::map<std::pair<Key, std::vector<Schema::Ptr>>, Schema::Ptr> combined_;
    std::map<std::string_view, std::optional<Pattern>> patterns_;
    std::size_t pattern_states_ = 0;
};

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/schema_document.ipp>
#include <ipybox/detail/impl/schema_merge.ipp>
#endif
