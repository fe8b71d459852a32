#pragma once
// Checks JSON values against the schemas of one document, with a bound on the work.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <ipybox/detail/schema_document.hpp>
#include <ipybox/detail/schema_model.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace ipybox::detail {

// Checks values against the schemas of a document, with a bound on the work.
class SchemaValidator {
public:
    explicit SchemaValidator(SchemaDocument& document, std::size_t budget = 2'000'000);

    bool valid(const Schema& schema, const json::value& value) { return !problem(schema, value); }

    // nullopt when valid, otherwise what is wrong and where ("/limit: must be an integer").
    std::optional<std::string> problem(const Schema& schema, const json::value& value);

    // Whether the last answer is a guess, because the bound on the work was reached.
    bool gave_up() const noexcept { return exhausted_.has_value() || unsure_ > 0; }

private:
    struct Problem {
        std::string at, what;
    };
    using Result = std::optional<Problem>;

    // Schemas within schemas and values within values: five for each level of what a call may
    // carry.
    static constexpr int max_depth = 640;

    // The parts of a value that a keyword has already judged, for unevaluatedProperties and -Items.
    struct Seen {
        std::set<std::string_view> keys;
        std::set<std::size_t> items;
    };

    // A place in the value; the pointer text is only built for a message.
    struct Place {
        const Place* parent = nullptr;
        std::string_view key;
        std::size_t index = 0;
        bool in_array = false;

        std::string pointer() const;
    };

    static Result fail(const Place& place, std::string what);
    Result exhausted(const Place& place, std::string what);

    Result check(const Schema& schema, const json::value& value, const Place& place, Seen* seen,
                 int depth);

    Result check_own(const Schema& schema, const json::value& value, const Place& place, Seen* seen,
                     int depth);

    static std::string type_names(unsigned types);
    static std::string shortened(const json::value& value);

    // Sums of fractions, such as 0.1 + 0.2, are off by what a double cannot hold.
    static bool nearly_multiple(const json::value& value, const json::value& step);

    Result check_number(const Schema& schema, const json::value& value, const Place& place);

    Result too_long(const Place& place);

    // limit >= 0; a count beyond size_t never fails a maximum
    static bool below(std::size_t count, const json::value* limit);
    static bool above(std::size_t count, const json::value* limit);

    // Unsure, and counted, when the pattern is one that cannot be matched within bounds.
    enum class Match { no, yes, unsure, too_long };
    Match match(std::string_view pattern, std::string_view text);

    Result check_string(const Schema& schema, std::string_view text, const Place& place);

    Result check_array(const Schema& schema, const json::array& array, const Place& place,
                       Seen* seen, int depth);

    // Text that is equal for equal values.
    static std::string canonical(const json::value& value, int depth);

    static Place at(const Place& parent, std::size_t index) { return {&parent, {}, index, true}; }
    static Place at(const Place& parent, std::string_view key) { return {&parent, key, 0, false}; }

    Result check_object(const Schema& schema, const json::value& value, const Place& place,
                        Seen* seen, int depth);

    Result check_combinations(const Schema& schema, const json::value& value, const Place& place,
                              Seen* seen, int depth);

    Result check_unevaluated_items(const Schema& schema, const json::array& array,
                                   const Place& place, Seen* seen, int depth);
    Result check_unevaluated_keys(const Schema& schema, const json::object& object,
                                  const Place& place, Seen* seen, int depth);

    // "; did you mean …?", or empty. For the arguments' own names only: it is not cheap.
    static std::string meant(std::string_view key, const Schema::Named& names);

    SchemaDocument& document_;
    std::size_t budget_, pattern_steps_;
    std::size_t unsure_ = 0;  // how often a pattern could not be checked
    Result exhausted_;        // what was too large, too deep or too long, if anything
};

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/schema_validator.ipp>
#endif
