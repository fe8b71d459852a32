#include <boost/test/unit_test.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/config.hpp>

BOOST_TEST_DONT_PRINT_LOG_VALUE(ipybox::approval::Fit)
BOOST_TEST_DONT_PRINT_LOG_VALUE(ipybox::approval::Rule::Effect)

namespace approval_rules_tests {

using namespace ipybox;
using approval::Fit;
using approval::RuleSet;
using Effect = approval::Rule::Effect;

namespace {
const auto wall = std::chrono::system_clock::from_time_t(1'800'000'000);  // 2027-01-15
const std::chrono::steady_clock::time_point start{};

json::value parsed(std::string_view text) { return parse_json(text, "test"); }

struct Call {
    std::string_view server = "files", tool = "write_file", origin = "mcp", session = "a";
    json::object arguments, annotations;
    approval::CallFacts facts() const {
        return {server, tool, origin, session, arguments, annotations};
    }
    Call& with(std::string_view text) {
        arguments = parsed(text).as_object();
        return *this;
    }
};

Effect judged(std::string_view rules, const Call& call) {
    return RuleSet(parsed(rules)).judge(call.facts(), wall, start).effect;
}

// What one condition on /x says to a value.
Fit fits(std::string_view conditions, std::string_view value) {
    const auto all = approval::ConditionReader::read(parsed(conditions), "test");
    const json::value found = parsed(value);
    std::size_t steps = approval::rule_steps;
    return approval::ConditionReader::all_fit(all, found.is_null() ? nullptr : &found, steps);
}

std::string refusal(std::string_view rules) {
    try {
        RuleSet set(parsed(rules), "policy.json, rules");
    } catch (const Error& error) {
        BOOST_TEST((error.code() == errc::bad_config));
        return error.detail();
    }
    return "accepted";
}
bool globs(std::string_view pattern, std::string_view text) {
    std::size_t steps = 10'000;
    return approval::Glob(pattern).matches(text, steps) == Fit::yes;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(approval_rules)

BOOST_AUTO_TEST_CASE(globs_match_whole_texts) {
    BOOST_TEST(globs("read_*", "read_file"));
    BOOST_TEST(!globs("read_*", "xread_file"));
    BOOST_TEST(globs("*", ""));
    BOOST_TEST(globs("a?c",
                     "a\xC3\xBC"
                     "c"));
    BOOST_TEST(!globs("a?c", "ac"));
    BOOST_TEST(globs("*a*b*", "xxaxxbxx"));
    BOOST_TEST(!globs("*a*b", "xxbxxa"));
    BOOST_TEST(globs("a\\*", "a*"));
    BOOST_TEST(!globs("a\\*", "ab"));
    for (const char* odd : {"*", "a?b", "x\\y", "**\\?"}) {
        BOOST_TEST(globs(approval::Glob::quoted(odd), odd));
        BOOST_TEST(!globs(approval::Glob::quoted(odd), std::string(odd) + "z"));
    }
    BOOST_TEST(!globs(approval::Glob::quoted("*"), "anything"));
}

BOOST_AUTO_TEST_CASE(work_is_bounded_and_what_costs_too_much_is_unclear) {
    std::size_t steps = 100'000;
    const std::string text(200'000, 'a');
    BOOST_TEST(approval::Glob("*a*a*a*a*b").matches(text, steps) == Fit::unclear);
    BOOST_TEST(steps == 0u);
    const std::string big = '"' + std::string(3u << 20, 'a') + '"';
    BOOST_TEST(fits(R"({"regex": "(a+)+b"})", big) == Fit::unclear);
    BOOST_TEST(fits(R"({"regex": "(a+)+b"})", '"' + std::string(50'000, 'a') + '"') != Fit::yes);
}

BOOST_AUTO_TEST_CASE(the_first_rule_that_fits_decides_and_none_passes) {
    const auto rules = R"([
        {"when": {"tool": "read_*"}, "then": "allow"},
        {"when": {"server": ["files", "git"], "tool": "delete_*"}, "then": {"deny": "nothing is deleted"}},
        {"when": {"origin": "shell*"}, "then": "deny"},
        {"when": {"session": "guest-*"}, "then": "ask"}])";
    Call call;
    BOOST_TEST(judged(rules, call) == Effect::pass);
    call.tool = "read_file";
    BOOST_TEST(judged(rules, call) == Effect::allow);
    call.tool = "delete_tree";
    RuleSet set(parsed(rules));
    const auto denied = set.judge(call.facts(), wall, start);
    BOOST_TEST(denied.effect == Effect::deny);
    BOOST_TEST(denied.reason == "nothing is deleted");
    BOOST_TEST(denied.rule->label() == "rule 2");
    call.server = "other";
    BOOST_TEST(judged(rules, call) == Effect::pass);
    call.session = "guest-7";
    BOOST_TEST(judged(rules, call) == Effect::ask);
    call.origin = "shell_magic";
    BOOST_TEST(judged(rules, call) == Effect::deny);
}

// Its arguments, the first among them, are what code says of a program.
BOOST_AUTO_TEST_CASE(no_rule_allows_a_program_by_its_arguments_alone) {
    Call call;
    call.server = "ipybox";
    call.tool = "program";
    call.origin = "program";
    call.arguments = parsed(R"({"writable_path": "/project/x", "argv": ["git"]})").as_object();
    const std::string argv = R"("arguments": {"/argv/0": {"equals": "git"}})";
    const std::string absent =
        R"("arguments": {"/argv/0": {"equals": "git"}, "/path": {"present": false}})";
    const std::string schema = R"("schema": {"properties": {"argv": {"type": "array"}}})";
    const std::string path =
        R"("arguments": {"/argv/0": {"equals": "git"}, "/path": {"equals": "/usr/bin/git"}})";
    for (const std::string origin :
         {R"("origin": ["program"])", R"("origin": "prog*")", R"("server": "ipybox")"}) {
        const auto effect = [&](const std::string& how) {
            return judged(R"([{"when": {)" + origin + ", " + how + R"(}, "then": "allow"}])", call);
        };
        for (const auto& how : {argv, absent, schema, path})
            BOOST_TEST((effect(how) == Effect::pass), how);
        const auto was = std::exchange(
            call.arguments, parsed(R"({"path": "/usr/bin/git", "argv": ["git"]})").as_object());
        for (const auto& how : {argv, absent, schema})
            BOOST_TEST((effect(how) == Effect::pass), how);
        BOOST_TEST((effect(path) == Effect::allow));
        call.arguments = was;
    }
    // Other calls have no such words.
    call.origin = "mcp";
    BOOST_TEST(
        (judged(R"([{"when": {)" + argv + R"(}, "then": "allow"}])", call) == Effect::allow));
}

BOOST_AUTO_TEST_CASE(hints_that_a_server_does_not_give_are_the_less_harmless_ones) {
    const auto read_only =
        R"([{"when": {"annotations": {"readOnlyHint": true}}, "then": "allow"}])";
    const auto destructive =
        R"([{"when": {"annotations": {"destructiveHint": true}}, "then": "deny"}])";
    const auto open = R"([{"when": {"annotations": {"openWorldHint": false}}, "then": "allow"}])";
    Call call;
    BOOST_TEST(judged(read_only, call) == Effect::pass);
    BOOST_TEST(judged(destructive, call) == Effect::deny);
    BOOST_TEST(judged(open, call) == Effect::pass);
    call.annotations["readOnlyHint"] = "true";  // not a boolean: says nothing
    BOOST_TEST(judged(read_only, call) == Effect::pass);
    call.annotations["readOnlyHint"] = true;
    BOOST_TEST(judged(read_only, call) == Effect::allow);
    BOOST_TEST(judged(destructive, call) == Effect::pass);
    call.annotations["destructiveHint"] = true;
    BOOST_TEST(judged(destructive, call) == Effect::deny);
}

BOOST_AUTO_TEST_CASE(conditions_on_arguments) {
    BOOST_TEST(fits(R"({"equals": {"a": [1, 2.0]}})", R"({"a": [1, 2]})") == Fit::yes);
    BOOST_TEST(fits(R"({"equals": null})", "null") == Fit::yes);
    BOOST_TEST(fits(R"({"one_of": ["a", 5]})", "5") == Fit::yes);
    BOOST_TEST(fits(R"({"one_of": ["a", 5]})", "6") == Fit::no);
    BOOST_TEST(fits(R"({"glob": ["*.txt", "*.md"]})", R"("a.md")") == Fit::yes);
    BOOST_TEST(fits(R"({"glob": "*"})", "null") == Fit::no);
    BOOST_TEST(fits(R"({"glob": "*"})", "7") == Fit::unclear);
    BOOST_TEST(fits(R"({"regex": "[a-z]+|x"})", R"("abc")") == Fit::yes);
    BOOST_TEST(fits(R"({"regex": "[a-z]+|x"})", R"("abc1")") == Fit::no);  // the whole text
    BOOST_TEST(fits(R"({"regex": "[a-z]+"})", R"("abc\n")") == Fit::no);
    BOOST_TEST(fits(R"({"minimum": 1, "maximum": 10})", "10") == Fit::yes);
    BOOST_TEST(fits(R"({"minimum": 1, "maximum": 10})", "10.5") == Fit::no);
    BOOST_TEST(fits(R"({"maximum": 10})", R"("5")") == Fit::unclear);
    BOOST_TEST(fits(R"({"present": false})", "null") == Fit::yes);
    BOOST_TEST(fits(R"({"present": true})", "false") == Fit::yes);
    BOOST_TEST(fits(R"({"not": {"glob": "a*"}})", R"("b")") == Fit::yes);
    BOOST_TEST(fits(R"({"not": {"glob": "a*"}})", "null") == Fit::no);
    BOOST_TEST(fits(R"({"not": {"glob": "a*"}})", "5") == Fit::unclear);
    BOOST_TEST(fits(R"({"every": {"under": "/w"}})", R"(["/w/a", "/w"])") == Fit::yes);
    BOOST_TEST(fits(R"({"every": {"under": "/w"}})", R"(["/w/a", "/x"])") == Fit::no);
    BOOST_TEST(fits(R"({"every": {"under": "/w"}})", R"(["/w/a", null])") == Fit::no);
    BOOST_TEST(fits(R"({"some": {"under": "/etc"}})", R"(["/w", "/etc/x"])") == Fit::yes);
    BOOST_TEST(fits(R"({"some": {"under": "/etc"}})", R"("/etc/x")") == Fit::unclear);
}

BOOST_AUTO_TEST_CASE(paths_are_compared_after_normalisation) {
    const auto under = [](std::string_view path) {
        return fits(R"({"under": ["/work", "/tmp/x/"]})", '"' + std::string(path) + '"');
    };
    for (const char* good : {"/work", "/work/", "/work/a", "//work///a/./b", "/etc/../work/a",
                             "/tmp/x/y", "/work/a/..", "/../work"})
        BOOST_TEST(under(good) == Fit::yes, good);
    for (const char* bad :
         {"/workshop", "/work/../etc", "/work/a/../../etc", "/", "/tmp/xy", "/tmp", "/Work"})
        BOOST_TEST(under(bad) == Fit::no, bad);
    for (const char* odd : {"",
                            "a",
                            "../work",
                            "~/x",
                            "~root",
                            "file:///work/../etc",
                            "FILE:/work/x",
                            "/work/..\\\\..\\\\etc",
                            "/work/%2e%2e/etc",
                            "/work%2Fx",
                            "/work/a\\u0000",
                            "/work/a\\n",
                            " /etc",
                            "/work ",
                            "/work/$HOME/x",
                            "/work/${HOME}",
                            "/work/$(id)",
                            "/work/`id`",
                            "/work/%252e%252e/etc",
                            "/work/%%32%65/x",
                            "/work/%u002e/x",
                            "/work/%USERPROFILE%",
                            "/work/..%20/etc",
                            "/work/.. /etc",
                            "/work/. ./etc",
                            "/work/.../etc",
                            "/work/..\\u00a0/etc",
                            "/work/..\\u200b/etc",
                            "/work/\\uff0e\\uff0e/etc",
                            "/work\\uff0fx",
                            "/work/\\u2024\\u2024/x",
                            "/work/\\u2026"})
        BOOST_TEST(under(odd) == Fit::unclear, odd);
    BOOST_TEST(fits(R"({"under": "/work", "base": "/work/sub"})", R"("a/b")") == Fit::yes);
    BOOST_TEST(fits(R"({"under": "/work", "base": "/work/sub"})", R"("../../x")") == Fit::no);
    BOOST_TEST(fits(R"({"under": "/"})", R"("/any")") == Fit::yes);
}

BOOST_AUTO_TEST_CASE(hosts_of_urls_are_read_strictly) {
    const auto host = [](std::string_view url) {
        return fits(
            R"({"url_host": ["example.com", "*.example.org", "api.test.net:8443", "10.0.0.1", "[::1]:80"]})",
            '"' + std::string(url) + '"');
    };
    for (const char* good :
         {"https://example.com", "http://EXAMPLE.com./a?b#c", "wss://a.b.example.org/x",
          "https://api.test.net:8443/", "http://10.0.0.1:99/", "http://[::1]/",
          "https://example.com:444?x=@evil"})
        BOOST_TEST(host(good) == Fit::yes, good);
    for (const char* bad : {"https://example.com.evil.net", "https://notexample.com",
                            "https://example.org", "https://api.test.net", "http://10.0.0.2",
                            "http://[::1]:81/", "http://evil.net/example.com"})
        BOOST_TEST(host(bad) == Fit::no, bad);
    for (const char* odd : {"example.com", "ftp://example.com", "https://user@example.com",
                            "https://example.com\\\\@evil.net", "https://example.com%2f.evil.net",
                            "https:/example.com", "https:// example.com", "http://0x7f.1/",
                            "http://010.0.0.1/", "https://ex\xC3\xA4mple.com", "https://",
                            "javascript://example.com", "http://example.com:0"})
        BOOST_TEST(host(odd) == Fit::unclear, odd);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_told_is_denied_whatever_the_rule_says) {
    Call call;
    call.with(R"({"path": "relative"})");
    for (const char* then : {"allow", "ask", "deny"}) {
        RuleSet rules(parsed(
            std::string(
                R"([{"name": "w", "when": {"arguments": {"/path": {"under": "/w"}}}, "then": ")") +
            then + R"("}, {"then": "allow"}])"));
        const auto result = rules.judge(call.facts(), wall, start);
        BOOST_TEST(result.effect == Effect::deny);
        BOOST_TEST(result.reason.find("rule 1 (w)") != std::string::npos, result.reason);
    }
    // Not when another part says clearly that the rule is about something else.
    BOOST_TEST(
        judged(
            R"([{"when": {"arguments": {"/path": {"under": "/w"}, "/mode": {"equals": "w"}}}, "then": "deny"}, {"then": "allow"}])",
            call) == Effect::allow);
}

BOOST_AUTO_TEST_CASE(json_schemas_and_pointers) {
    Call call;
    call.with(R"({"a/b": {"c~": [10, {"d": "x"}]}, "n": 3})");
    const auto pointer = [&](std::string_view text) {
        return judged(R"([{"when": {"arguments": {")" + std::string(text) +
                          R"(": {"present": true}}}, "then": "allow"}])",
                      call) == Effect::allow;
    };
    BOOST_TEST(pointer("/a~1b/c~0/1/d"));
    BOOST_TEST(!pointer("/a~1b/c~0/2"));
    BOOST_TEST(!pointer("/a~1b/c~0/01x"));
    const auto schema =
        R"([{"when": {"schema": {"type": "object", "required": ["n"], "properties": {"n": {"maximum": 5}}}}, "then": "allow"}])";
    BOOST_TEST(judged(schema, call) == Effect::allow);
    BOOST_TEST(judged(schema, call.with(R"({"n": 6})")) == Effect::pass);
}

BOOST_AUTO_TEST_CASE(budgets_count_by_session_and_over_time) {
    using std::chrono::minutes;
    Call call;
    RuleSet rules(parsed(R"([{"budget": {"calls": 2, "per": "1h"}, "then": "allow"}])"));
    const auto at = [&](int minute) {
        return rules.judge(call.facts(), wall, start + minutes(minute));
    };
    BOOST_TEST(at(0).effect == Effect::allow);
    BOOST_TEST(at(30).effect == Effect::allow);
    const auto spent = at(59);
    BOOST_TEST(spent.effect == Effect::deny);
    BOOST_TEST(spent.reason == "the budget of rule 1 is spent: 2 calls per 1h");
    BOOST_TEST(at(60).effect == Effect::allow);
    BOOST_TEST(at(61).effect == Effect::deny);
    call.session = "b";
    BOOST_TEST(at(61).effect == Effect::allow);

    RuleSet next(parsed(
        R"([{"budget": {"calls": 1, "exceeded": "pass"}, "then": "allow"}, {"budget": {"calls": 1, "exceeded": "deny"}, "then": "ask"}])"));
    for (const Effect expected : {Effect::allow, Effect::ask, Effect::deny})
        BOOST_TEST(next.judge(call.facts(), wall, start).effect == expected);
}

BOOST_AUTO_TEST_CASE(rules_expire) {
    const Call call;
    BOOST_TEST(judged(R"([{"expires": "2027-01-15T08:00:01Z", "then": "allow"}])", call) ==
               Effect::allow);
    BOOST_TEST(judged(R"([{"expires": "2027-01-15T08:00:00Z", "then": "allow"}])", call) ==
               Effect::pass);
    BOOST_TEST(judged(R"([{"expires": "2027-01-15T09:00:00+02:00", "then": "allow"}])", call) ==
               Effect::pass);
    BOOST_TEST(judged(R"([{"expires": "2027-01-15T07:00:00-02:00", "then": "allow"}])", call) ==
               Effect::allow);
    // Beyond what the clock can count.
    for (const std::string year : {"2262", "2263", "2999", "9999"})
        BOOST_TEST(judged(R"([{"expires": ")" + year + R"(-12-31T23:59:59Z", "then": "deny"}])",
                          call) == Effect::deny,
                   year);
    for (const std::string year : {"0001", "1500", "1677", "1969"})
        BOOST_TEST(judged(R"([{"expires": ")" + year + R"(-01-01T00:00:00Z", "then": "deny"}])",
                          call) == Effect::pass,
                   year);
}

BOOST_AUTO_TEST_CASE(a_mistake_is_refused_with_its_place_and_what_is_accepted) {
    const std::pair<const char*, const char*> mistakes[] = {
        {R"([])", "policy.json, rules: must be an array of at least one rule"},
        {R"([{"then": "allow"}, 5])",
         "policy.json, rules/1: must be an object with some of name, when, then, budget, expires"},
        {R"([{"when": {}}])",
         R"(policy.json, rules/0: "then" is missing; accepted: "allow", "ask", {"ask": {"remember": false}}, "deny", {"deny": "reason"})"},
        {R"([{"then": "yes"}])",
         R"(policy.json, rules/0/then: accepted: "allow", "ask", {"ask": {"remember": false}}, "deny", {"deny": "reason"})"},
        {R"([{"then": "allow", "if": {}}])",
         R"(policy.json, rules/0: unknown key "if"; accepted: name, when, then, budget, expires)"},
        {R"([{"when": {"tol": "x"}, "then": "ask"}])",
         R"(policy.json, rules/0/when: unknown key "tol"; accepted: server, tool, origin, session, annotations, arguments, schema)"},
        {R"([{"when": {"tool": []}, "then": "ask"}])",
         "policy.json, rules/0/when/tool: must be a text or an array of at least one"},
        {R"([{"when": {"origin": "shel"}, "then": "ask"}])",
         R"(policy.json, rules/0/when/origin: "shel" matches no origin; there are: mcp, shell, shell_magic, package, register, program)"},
        {R"([{"when": {"origin": "program", "arguments": {"/argv": {"present": true}}}, "then": "allow"}])",
         R"(policy.json, rules/0/when/arguments: a rule that allows programs by their arguments must also have "/path")"},
        {R"([{"when": {"annotations": {"readOnly": true}}, "then": "ask"}])",
         R"(policy.json, rules/0/when/annotations: unknown key "readOnly"; accepted: readOnlyHint, destructiveHint, idempotentHint, openWorldHint)"},
        {R"([{"when": {"arguments": {"path": {"present": true}}}, "then": "ask"}])",
         R"(policy.json, rules/0/when/arguments/path: must be a JSON pointer: it begins with /, as in "/path")"},
        {R"([{"when": {"arguments": {"/path": {"prefix": "/w"}}}, "then": "ask"}])",
         R"(policy.json, rules/0/when/arguments/~1path: unknown key "prefix"; accepted: present, equals, one_of, glob, regex, minimum, maximum, under, base, url_host, every, some, not)"},
        {R"([{"when": {"arguments": {"/path": {"under": "work"}}}, "then": "ask"}])",
         "policy.json, rules/0/when/arguments/~1path/under: must be an absolute directory, such as "
         "/home/me/project"},
        {R"([{"when": {"arguments": {"/path": {"base": "/work"}}}, "then": "ask"}])",
         R"(policy.json, rules/0/when/arguments/~1path/base: needs "under" beside it)"},
        {R"([{"when": {"arguments": {"/a/b": {"minimum": "1"}}}, "then": "ask"}])",
         "policy.json, rules/0/when/arguments/~1a~1b/minimum: must be a number"},
        {R"([{"when": {"schema": {"properties": {"a": {"tipe": "string"}}}}, "then": "ask"}])",
         "policy.json, rules/0/when/schema/properties/a/tipe: is not a known key"},
        {R"([{"then": "deny", "budget": {"calls": 1}}])",
         "policy.json, rules/0/budget: a rule that denies has no budget"},
        {R"([{"then": "allow", "budget": {"calls": 0}}])",
         "policy.json, rules/0/budget/calls: must be a whole number from 1 to 100000"},
        {R"([{"then": "allow", "name": "a"}, {"then": "ask", "name": "a"}])",
         R"(policy.json, rules/1/name: "a" is the name of another rule)"},
    };
    for (const auto& [rules, expected] : mistakes) BOOST_TEST(refusal(rules) == expected);
    for (const char* beginning :
         {R"([{"when": {"arguments": {"/x": {"regex": "(a)\\1"}}}, "then": "ask"}])",
          R"([{"when": {"arguments": {"/x": {"regex": "a)(b"}}}, "then": "ask"}])",
          R"([{"when": {"arguments": {"/x": {"url_host": "https://a.com"}}}, "then": "ask"}])",
          R"([{"when": {"arguments": {"/x": {"url_host": "*.com"}}}, "then": "ask"}])",
          R"([{"when": {"arguments": {"/x": {}}}, "then": "ask"}])",
          R"([{"when": {"arguments": {}}, "then": "ask"}])",
          R"([{"when": {"schema": {"pattern": "(?=a)(b)\\1"}}, "then": "ask"}])",
          R"([{"then": "allow", "budget": {"calls": 1, "per": "1 hour"}}])",
          R"([{"then": "allow", "budget": {"calls": 1, "exceeded": "allow"}}])",
          R"([{"then": "allow", "expires": "2030-12-31"}])",
          R"([{"then": "allow", "expires": "2030-12-31T00:00:00"}])",
          R"([{"then": "allow", "expires": "2030-12-31T00:00:00Zx"}])"})
        BOOST_TEST(refusal(beginning).starts_with("policy.json, rules/0/"),
                   beginning << " → " << refusal(beginning));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace approval_rules_tests
