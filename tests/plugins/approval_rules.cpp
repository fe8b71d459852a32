#include <boost/test/unit_test.hpp>
#include <ipybox/approval/config.hpp>
#include <ipybox/approval/granted_rules.hpp>
#include <ipybox/config.hpp>

#include "test_support.hpp"

namespace plugin_approval_rules_tests {

using namespace ipybox;

namespace {
struct RulesFixture {
    RulesFixture() {
        registry.add_directory(test::plugin_directory());
        host.ask = [this](ToolCall call) -> awaitable<Decision> {
            asked.push_back(call.tool);
            may_remember = call.may_remember;
            if (granted) {
                if (auto before = granted->find(call)) co_return std::move(*before);
            }
            co_return answer;
        };
    }
    PolicyPtr make(std::string_view policy) {
        return make_policy(registry, host, parse_json(policy, "policy.json"), "policy.json");
    }
    Decision decide(ApprovalPolicy& policy, std::string tool) {
        ToolCall call;
        call.server = "files";
        call.tool = std::move(tool);
        return test::run(context, policy.decide(std::move(call)));
    }

    asio::io_context context;
    Host host{context.get_executor(), {}, {}};
    PluginRegistry registry;
    std::vector<std::string> asked;
    bool may_remember = true;
    std::optional<GrantedRules> granted;  // of whoever is asked
    Decision answer{Verdict::allow};
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(approval_rules_plugin, RulesFixture)

BOOST_AUTO_TEST_CASE(rules_decide_pass_on_and_say_which_of_them_it_was) {
    const auto policy = make(R"({"rules": [
        {"name": "reads", "when": {"tool": "read_*"}, "then": "allow"}, {"when": {"tool": "delete_*"}, "then": {"deny": "no"}}]})");
    const auto allowed = decide(*policy, "read_file");
    BOOST_TEST((allowed.verdict == Verdict::allow));
    BOOST_TEST(allowed.by == "rules: rule 1 (reads)");
    const auto denied = decide(*policy, "delete_file");
    BOOST_TEST((denied.verdict == Verdict::deny));
    BOOST_TEST(denied.reason == "no");
    BOOST_TEST((decide(*policy, "other").verdict == Verdict::pass));
    BOOST_TEST(asked.empty());
}

BOOST_AUTO_TEST_CASE(an_ask_is_the_answer_of_who_was_asked_and_never_a_pass) {
    const auto policy =
        make(R"({"first_match": [{"rules": [{"when": {"tool": "w*"}, "then": "ask"}]}, "allow"]})");
    answer.by = "console";
    BOOST_TEST(decide(*policy, "write").by == "rules: rule 1, console");
    answer = Decision(Verdict::deny, "not now");
    BOOST_TEST(decide(*policy, "write").reason == "not now");
    answer = Decision();
    BOOST_TEST((decide(*policy, "write").verdict == Verdict::deny));
    BOOST_TEST(asked.size() == 3u);
    BOOST_TEST((decide(*policy, "other").verdict == Verdict::allow));
    host.ask = nullptr;
    BOOST_TEST((decide(*policy, "write").verdict == Verdict::deny));
}

BOOST_AUTO_TEST_CASE(what_is_never_remembered_travels_with_the_question) {
    const auto policy = make(R"({"first_match": [{"rules": [
        {"when": {"tool": "delete*"}, "then": {"ask": {"remember": false}}},
        {"when": {"tool": "read*"}, "then": {"ask": {}}}]}, {"ask": {"remember": false}}]})");
    decide(*policy, "delete");
    BOOST_TEST(!may_remember);
    decide(*policy, "read");
    BOOST_TEST(may_remember);
    decide(*policy, "other");
    BOOST_TEST(!may_remember);
    decide(*make(R"("ask")"), "other");
    BOOST_TEST(may_remember);
}

BOOST_AUTO_TEST_CASE(a_remembered_yes_goes_before_no_denial_and_no_question_each_time) {
    test::TemporaryDirectory directory;
    granted.emplace(RememberedRules(directory.path() / "always.json"));
    for (const char* tool : {"read", "delete", "pay"}) {
        ToolCall call;
        call.server = "files";
        call.tool = tool;
        granted->grant(call, rule_allowing(call), {GrantLifetime::Kind::always});
        granted->grant(call, rule_allowing(call), {GrantLifetime::Kind::session});
    }
    answer = Decision(Verdict::deny, "the person says no");
    const char* rules = R"({"rules": [{"when": {"tool": "delete"}, "then": {"deny": "by rule"}},
        {"when": {"tool": "pay"}, "then": {"ask": {"remember": false}}}, {"then": "ask"}]})";
    for (const std::string form : {"all_of", "first_match", "any_of"}) {
        const auto policy = make("{\"" + form + "\": [" + rules + ", \"ask\"]}");
        BOOST_TEST((decide(*policy, "read").verdict == Verdict::allow), form);
        if (form == "any_of") continue;  // there, any allowance allows
        BOOST_TEST(decide(*policy, "delete").reason == "by rule", form);
        BOOST_TEST(decide(*policy, "pay").reason == "the person says no", form);
    }
}

BOOST_AUTO_TEST_CASE(a_mistake_names_the_file_and_the_place) {
    const auto problem = [&](std::string_view policy) {
        try {
            make(policy);
        } catch (const Error& error) {
            return error.detail();
        }
        return std::string("accepted");
    };
    BOOST_TEST(
        problem(R"({"rules": [{"then": "allow"}, {"then": "alow"}]})") ==
        R"(policy.json: rules/1/then: accepted: "allow", "ask", {"ask": {"remember": false}}, )"
        R"("deny", {"deny": "reason"})");
    BOOST_TEST(problem(R"({"rules": [{"then": {"ask": {"remember": 1}}}]})") ==
               "policy.json: rules/0/then/ask/remember: must be true or false");
    BOOST_TEST(problem(R"({"rules": [{"then": {"ask": {"forget": true}}}]})")
                   .starts_with("policy.json: rules/0/then/ask: unknown key \"forget\""));
    BOOST_TEST(problem(R"({"ask": {"remember": "no"}})").find("remember") != std::string::npos);
    BOOST_TEST(
        problem(R"({"any_of": ["allow", {"rules": {"rules": [{"then": "ask", "when": 5}]}}]})")
            .starts_with("policy.json/any_of/1: rules/0/when: must be an object"));
    BOOST_TEST(problem(R"({"rules": {}})").find("rules") != std::string::npos);
    BOOST_TEST(problem(R"({"rules": []})").find("policy.json") == 0u);
    BOOST_TEST(problem(R"({"first_match": ["nosuch"]})")
                   .starts_with("policy.json/first_match/0: no approval plugin is named"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_approval_rules_tests
