#include <boost/test/unit_test.hpp>
#include <ipybox/approval/approval.hpp>
#include <stdexcept>

#include "test_support.hpp"

namespace approval_tests {

using namespace ipybox;

namespace {
class Fixed final : public ApprovalPolicy {
public:
    explicit Fixed(Verdict verdict) : verdict_(verdict) {}
    awaitable<Decision> decide(ToolCall) override { co_return Decision(verdict_, "fixed"); }

private:
    Verdict verdict_;
};

class Throws final : public ApprovalPolicy {
public:
    awaitable<Decision> decide(ToolCall) override {
        throw std::runtime_error("broken");
        co_return Decision{};
    }
};

class WaitsForEver final : public ApprovalPolicy {
public:
    awaitable<Decision> decide(ToolCall) override {
        Event never_notified(co_await asio::this_coro::executor);
        for (;;) co_await never_notified.wait();
    }
};

template <class Combinator>
Verdict combine(std::vector<Verdict> verdicts) {
    PolicyList members;
    for (const auto verdict : verdicts) members.push_back(std::make_unique<Fixed>(verdict));
    Combinator policy(std::move(members));
    asio::io_context context;
    return test::run(context, policy.decide(ToolCall())).verdict;
}

Decision approved_by(PolicyPtr policy, Duration timeout) {
    asio::io_context context;
    return test::run(context, approve(*policy, ToolCall(), timeout));
}

constexpr auto P = Verdict::pass, A = Verdict::allow, D = Verdict::deny;
}  // namespace

BOOST_AUTO_TEST_SUITE(approval)

BOOST_AUTO_TEST_CASE(a_call_always_has_a_schema) {
    const ToolCall call;
    BOOST_TEST(call.input_schema->empty());
    BOOST_TEST(ToolCall(call).input_schema == call.input_schema);
}

BOOST_AUTO_TEST_CASE(first_match_takes_the_first_that_does_not_pass) {
    BOOST_TEST((combine<FirstMatch>({P, D, A}) == D));
    BOOST_TEST((combine<FirstMatch>({P, A, D}) == A));
    BOOST_TEST((combine<FirstMatch>({P, P}) == P));
}

BOOST_AUTO_TEST_CASE(all_of_is_denied_by_any_and_passes_if_any_passes) {
    BOOST_TEST((combine<AllOf>({A, A}) == A));
    BOOST_TEST((combine<AllOf>({A, P}) == P));
    BOOST_TEST((combine<AllOf>({P, A, D}) == D));
}

BOOST_AUTO_TEST_CASE(any_of_is_allowed_by_any_and_denied_before_it_passes) {
    BOOST_TEST((combine<AnyOf>({D, P, A}) == A));
    BOOST_TEST((combine<AnyOf>({P, D}) == D));
    BOOST_TEST((combine<AnyOf>({P, P}) == P));
}

BOOST_AUTO_TEST_CASE(empty_combinators_are_configuration_errors) {
    const auto is_config_error = [](const Error& error) {
        return error.code() == errc::bad_config;
    };
    BOOST_CHECK_EXCEPTION(FirstMatch(PolicyList{}), Error, is_config_error);
    BOOST_CHECK_EXCEPTION(AllOf(PolicyList{}), Error, is_config_error);
    BOOST_CHECK_EXCEPTION(AnyOf(PolicyList{}), Error, is_config_error);
}

BOOST_AUTO_TEST_CASE(only_a_clear_allow_is_an_approval) {
    BOOST_TEST((approved_by(std::make_unique<Fixed>(A), Duration::zero()).verdict == A));
    BOOST_TEST((approved_by(std::make_unique<Fixed>(P), Duration::zero()).verdict == D));
    const auto failed = approved_by(std::make_unique<Throws>(), std::chrono::seconds(5));
    BOOST_TEST((failed.verdict == D));
    BOOST_TEST(failed.reason == "the approval policy failed: broken");
    BOOST_TEST(!failed.expired);
}

BOOST_AUTO_TEST_CASE(an_unanswered_question_expires_as_a_denial) {
    const auto decision =
        approved_by(std::make_unique<WaitsForEver>(), std::chrono::milliseconds(20));
    BOOST_TEST((decision.verdict == D));
    BOOST_TEST(decision.expired);
}

BOOST_AUTO_TEST_CASE(the_first_answer_counts_and_the_others_are_withdrawn) {
    asio::io_context context;
    std::vector<std::string> ended;
    const auto answers = [&](std::string name, int milliseconds, Decision decision) -> Approver {
        return [&ended, name, milliseconds, decision](ToolCall) -> awaitable<Decision> {
            struct Leave {
                std::vector<std::string>& list;
                std::string name;
                ~Leave() { list.push_back(name); }
            } const leave{ended, name};
            asio::steady_timer timer(co_await asio::this_coro::executor,
                                     std::chrono::milliseconds(milliseconds));
            co_await timer.async_wait(asio::use_awaitable);
            co_return decision;
        };
    };
    const Approver fails = [](ToolCall) -> awaitable<Decision> {
        co_await asio::this_coro::executor;
        throw std::runtime_error("broken");
    };
    const auto ask = [&](std::vector<Approver> approvers) {
        ended.clear();
        const auto decision = test::run(context, first_answer(std::move(approvers), ToolCall()));
        context.restart();
        context.run();  // whoever was withdrawn ends
        return decision;
    };
    const auto no = ask({answers("absent", 1, Decision()), answers("slow", 60'000, Decision(A)),
                         fails, answers("quick", 30, Decision(D, "no"))});
    BOOST_TEST((no.verdict == D));
    BOOST_TEST(no.reason == "no");
    BOOST_TEST(ended.size() == 3u);
    BOOST_CHECK_EXCEPTION(
        ask({answers("absent", 1, Decision()), fails}), std::runtime_error,
        [](const auto& error) { return std::string_view(error.what()) == "broken"; });
    const auto nobody = ask({answers("absent", 1, Decision())});
    BOOST_TEST((nobody.verdict == D));
    BOOST_TEST(nobody.reason == "nobody is there to approve this call");
    BOOST_TEST((ask({}).verdict == D));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace approval_tests
