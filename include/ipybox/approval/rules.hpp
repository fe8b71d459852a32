#pragma once
// The rules of an approval policy: read strictly, judged with bounded work, explained to people.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <ipybox/error.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::approval {

namespace json = boost::json;

// What rules look at. Refers to a call that must live meanwhile.
struct CallFacts {
    std::string_view server, tool, origin, session;
    const json::object& arguments;
    const json::object& annotations;
};

// unclear: the call is written so that nobody can tell, or too large to tell; it is denied.
enum class Fit { no, yes, unclear };

// What judging one call may cost, in steps of a few nanoseconds.
inline constexpr std::size_t rule_steps = 5'000'000;

// Throws Error: bad_config (always; names the place).
[[noreturn]] void bad_rule(const std::string& place, const std::string& what);
// The JSON pointer of a member of what lies at `place`.
std::string below(const std::string& place, std::string_view key);
// These take a part of a rule from what a person wrote. Throws Error: bad_config (it is malformed,
// or an object has other keys than `keys`).
const json::object& rule_object(const json::value& value, const std::string& place,
                                std::initializer_list<std::string_view> keys);
std::string rule_text(const json::value& value, const std::string& place);
// A text, or an array of at least one.
std::vector<std::string> rule_texts(const json::value& value, const std::string& place);

// The time that "30s", "5m", "1h" or "7d" means; nothing for other texts and more than 10,000.
std::optional<std::chrono::seconds> time_span(std::string_view text);

// `*` is any text, `?` any one character, `\` takes the next one literally; for the whole text.
class Glob {
public:
    explicit Glob(std::string_view pattern);

    // The pattern that matches exactly this text.
    static std::string quoted(std::string_view text);

    // Takes from `steps`; unclear when they are used up.
    Fit matches(std::string_view text, std::size_t& steps) const;

private:
    enum Kind : char { literal, one, many };
    struct Part {
        Kind kind;
        char character;
    };
    std::vector<Part> parts_;
};

// Whether servers read a path in different ways: what some take for a variable or a command ($HOME,
// %USERPROFILE%, `id`), or decode, once or more (%2e, %252e, %u002e), for a separator or a dot
// after normalization (U+FF0F), or leave out (blanks and dots at the end of "..%20", zero width).
bool reads_differently(std::string_view path);

// An absolute path without "." and "..", by its text alone: links are not followed. A relative one
// starts at `base`. Nothing for what servers read in different ways.
std::optional<std::string> normal_path(std::string_view path, std::string_view base);

// A host, or an address in its one spelling, and the port of a URL.
struct UrlHost {
    std::string host;
    std::uint16_t port = 0;
    bool address = false;
};
std::optional<UrlHost> host_or_address(std::string_view text, std::uint16_t port);
// Strict on purpose: what clients parse in different ways has no host. http, https, ws and wss.
std::optional<UrlHost> url_host(std::string_view url);

// One thing that a value of a call's arguments must fulfil; absent and null are nullptr.
struct Condition {
    std::string what;
    std::function<Fit(const json::value*, std::size_t&)> fits;
};

// Reads and judges conditions.
class ConditionReader {
public:
    // The conditions of a JSON object, which must all hold. Throws Error: bad_config (a condition
    // is malformed).
    static std::vector<Condition> read(const json::value& value, const std::string& place,
                                       int depth = 0);
    // *failed becomes the condition that decided, unless all fit.
    static Fit all_fit(const std::vector<Condition>& conditions, const json::value* value,
                       std::size_t& steps, std::string* failed = nullptr);

private:
    using Test = std::function<Fit(const json::value*, std::size_t&)>;

    static Test one(std::string_view key, const json::value& setting, const json::object& all,
                    const std::string& place, int depth);

    static Test regex(const std::string& text, const std::string& place);

    static std::string directory(const std::string& text, const std::string& place);
    static Test under(const json::value& setting, const json::object& all,
                      const std::string& place);

    static Test hosts(const json::value& setting, const std::string& place);
};

// One rule of a policy.
class Rule {
public:
    enum class Effect { allow, deny, ask, pass };
    using Wall = std::chrono::system_clock::time_point;
    using Steady = std::chrono::steady_clock::time_point;

    // place: where it stands, such as "policy.json, rules/2". Throws Error: bad_config (the rule is
    // malformed; names the place).
    Rule(const json::value& value, const std::string& place, std::size_t number);

    const std::string& name() const noexcept { return name_; }
    const std::string& label() const noexcept { return label_; }
    Effect effect() const noexcept { return effect_; }
    const std::string& reason() const noexcept { return reason_; }
    // Whether a yes to what the rule asks may hold for later calls.
    bool may_remember() const noexcept { return may_remember_; }
    // From then on it fits no call.
    const std::optional<Wall>& expires() const noexcept { return expires_; }

    // One thing that a rule demands, as people read it.
    struct Part {
        std::string what;   // "tool", "arguments/~1path/under"
        std::string value;  // what the call has there, printable
        Fit fit = Fit::yes;
    };
    // Whether the rule is about this call; `why` gets the parts that do not hold.
    Fit fits(const CallFacts& call, Wall now, std::size_t& steps,
             std::vector<Part>* why = nullptr) const;
    std::size_t parts() const noexcept { return tests_.size() + (expires_ ? 1 : 0); }

    // What the budget makes of a call that fits, which counts from now on.
    Effect spend(std::string_view session, Steady now, std::string& reason);

private:
    using Test = std::function<Fit(const CallFacts&, std::size_t&, bool explain, Part&)>;
    struct Budget {
        std::size_t calls = 0;
        std::optional<std::chrono::seconds> per;
        Effect exceeded = Effect::deny;
        std::string text;
        std::map<std::string, std::deque<Steady>, std::less<>> used;
    };

    static std::optional<Effect> effect_of(const json::value& value);
    void read_effect(const json::value& value, const std::string& place);

    void read_when(const json::value& value, const std::string& place);

    void add_globs(const json::object& when, const std::string& place, const char* key,
                   std::string_view CallFacts::* field);

    // A hint that a server does not give has the value that MCP says: the less harmless one.
    static bool hint(const json::object& annotations, std::string_view name);
    void add_hints(const json::value& value, const std::string& place);

    static std::vector<std::string> tokens_of(std::string_view pointer, const std::string& place);
    static const json::value* find(const json::object& arguments,
                                   const std::vector<std::string>& tokens);
    void add_conditions(std::string_view pointer, const json::value& value,
                        const std::string& place);

    static void check_patterns(const json::value& schema, const std::string& place);
    void add_schema(const json::value& value, const std::string& place);

    // A program's arguments, the first among them, are what code says of it: they alone allow none.
    void add_path_of_program(const json::object& when);

    void read_budget(const json::value& value, const std::string& place);

    void read_expiry(const json::value& value, const std::string& place);

    std::string name_, label_, reason_;
    Effect effect_ = Effect::deny;
    bool may_remember_ = true;
    std::vector<Test> tests_;
    std::optional<Budget> budget_;
    std::optional<Wall> expires_;
};

// Rules in their order; the first that fits decides.
class RuleSet {
public:
    RuleSet() = default;
    // place: where the array stands, such as "policy.json, rules". Throws Error: bad_config (a rule
    // is malformed; names the place).
    explicit RuleSet(const json::value& value, const std::string& place = "rules");

    struct Judgement {
        Rule::Effect effect = Rule::Effect::pass;
        const Rule* rule = nullptr;  // none: no rule fits
        std::string reason;          // of a denial
    };
    // Counts the call in the budget of the rule that decides.
    Judgement judge(const CallFacts& call, Rule::Wall wall, Rule::Steady now);
    static std::string unclear_text(const Rule::Part& part);

    const std::vector<Rule>& rules() const noexcept { return rules_; }

private:
    std::vector<Rule> rules_;
};

}  // namespace ipybox::approval

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/rule_conditions.ipp>
#include <ipybox/approval/impl/rules.ipp>
#endif
