#pragma once
// Ways to combine policies, and the one place that acts on what they say.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <functional>
#include <ipybox/approval_policy.hpp>
#include <ipybox/detail/pending_approval.hpp>
#include <ipybox/error.hpp>
#include <list>
#include <memory>
#include <vector>

namespace ipybox {

using PolicyPtr = std::unique_ptr<ApprovalPolicy>;
using PolicyList = std::vector<PolicyPtr>;

namespace approval {
inline PolicyList checked_members(PolicyList members, const char* name) {
    if (members.empty())
        throw Error(errc::bad_config, std::string(name) + ": needs at least one policy");
    for (const auto& member : members)
        if (!member) throw Error(errc::bad_config, std::string(name) + ": a policy is null");
    return members;
}
}  // namespace approval

// The first member that does not pass decides.
class FirstMatch final : public ApprovalPolicy {
public:
    // members: asked in this order, each only if those before it passed. Throws Error: bad_config
    // (there are none, or one is null).
    explicit FirstMatch(PolicyList members)
        : members_(approval::checked_members(std::move(members), "first_match")) {}

    awaitable<Decision> decide(ToolCall call) override {
        for (auto& member : members_) {
            Decision decision = co_await member->decide(call);
            if (decision.verdict != Verdict::pass) co_return decision;
        }
        co_return Decision{};
    }

private:
    PolicyList members_;
};

// Any denial denies; passes if none denies and any passes; else allows.
class AllOf final : public ApprovalPolicy {
public:
    // members: asked in this order until one denies. Throws Error: bad_config (there are none, or
    // one is null).
    explicit AllOf(PolicyList members)
        : members_(approval::checked_members(std::move(members), "all_of")) {}

    awaitable<Decision> decide(ToolCall call) override {
        Decision result(Verdict::allow);
        for (auto& member : members_) {
            Decision decision = co_await member->decide(call);
            if (decision.verdict == Verdict::deny) co_return decision;
            if (decision.verdict == Verdict::pass) result = std::move(decision);
        }
        co_return result;
    }

private:
    PolicyList members_;
};

// Any allowance allows; else any denial denies; else passes.
class AnyOf final : public ApprovalPolicy {
public:
    // members: asked in this order until one allows. Throws Error: bad_config (there are none, or
    // one is null).
    explicit AnyOf(PolicyList members)
        : members_(approval::checked_members(std::move(members), "any_of")) {}

    awaitable<Decision> decide(ToolCall call) override {
        Decision result;
        for (auto& member : members_) {
            Decision decision = co_await member->decide(call);
            if (decision.verdict == Verdict::allow) co_return decision;
            if (decision.verdict == Verdict::deny) result = std::move(decision);
        }
        co_return result;
    }

private:
    PolicyList members_;
};

namespace approval {
// A failed policy is a denial.
inline awaitable<void> decide_into(Decision& decision, ApprovalPolicy& policy, ToolCall call) {
    std::string problem;
    try {
        decision = co_await policy.decide(std::move(call));
        co_return;
    } catch (const Error& e) {
        // Such as a call that cannot be put before a person: its sentence is for the code.
        if (e.code() == errc::denied) {
            decision = Decision(Verdict::deny, e.detail());
            decision.by = "no question";
            co_return;
        }
        problem = e.what();
    } catch (const std::exception& e) {
        problem = e.what();
    } catch (...) {
        problem = "unknown exception";
    }
    const auto fate = co_await asio::this_coro::cancellation_state;
    if (fate.cancelled() != asio::cancellation_type::none) {
        decision = Decision(Verdict::deny, "withdrawn before anybody answered");
        decision.by = "nobody";
        co_return;
    }
    decision = Decision(Verdict::deny, "the approval policy failed: " + problem);
}
}  // namespace approval

// The only caller of decide(): anything but a clear allow within `timeout` is a denial.
// timeout zero: unlimited. Returns a Decision whose verdict is allow or deny, never pass.
inline awaitable<Decision> approve(ApprovalPolicy& policy, ToolCall call, Duration timeout) {
    Decision decision;
    const auto deadline = call.deadline = deadline_after(timeout);
    auto work = approval::decide_into(decision, policy, std::move(call));
    if (deadline == never) {
        co_await std::move(work);
    } else {
        auto limit = sleep_until(deadline);
        const bool decided = co_await ends_first(std::move(work), std::move(limit));
        if (!decided) {
            decision = Decision(Verdict::deny, "nobody answered in time");
            decision.expired = true;
            decision.by = "approval timeout";
        }
    }
    if (decision.verdict == Verdict::pass)
        decision = Decision(Verdict::deny, "no approval policy allowed this call");
    co_return decision;
}

// Somebody who can answer: a terminal, a channel to other programs, the client. A pass means that
// nobody is there. Cancelled when the answer of another counts.
using Approver = std::function<awaitable<Decision>(ToolCall)>;

// The yes of whoever changed the call's arguments: see ToolCall::agreed_by.
inline Decision agreed_before(const ToolCall& call) {
    Decision yes(Verdict::allow);
    yes.by = call.agreed_by;
    return yes;
}

// What follows from an answer to a question about `call`. What a person changed is kept where no
// policy loses it; a yes to changed arguments where nothing can be changed is a denial.
inline Decision with_edits_kept(const ToolCall& call, Decision said) {
    if (!said.arguments) return said;
    if (said.verdict == Verdict::allow && call.edited) {
        call.edited->arguments = said.arguments;
        return said;
    }
    Decision refused(Verdict::deny, "the arguments of this call cannot be changed");
    refused.by = said.by;
    return refused;
}

// What is decided when there is nobody to ask: `by` tells it from a person's denial.
inline Decision nobody_there() {
    Decision decision(Verdict::deny, "nobody is there to approve this call");
    decision.by = "nobody";
    return decision;
}

// For a policy that leaves a call to a person. ask: Host::ask; null denies. Who is asked and passes
// denies as well: another policy might allow what a person was to be asked.
inline awaitable<Decision> ask_person(Approver ask, ToolCall call) {
    if (!ask) co_return nobody_there();
    Decision decision = co_await ask(std::move(call));
    if (decision.verdict == Verdict::pass) decision = Decision(Verdict::deny, "nobody answered");
    co_return decision;
}

// Asks all at once; the first answer counts, and the others are withdrawn. Denies when
// nobody is there; throws what an approver threw when there was no answer. What a person changed is
// with_edits_kept().
inline awaitable<Decision> first_answer(std::vector<Approver> approvers, ToolCall call) {
    struct Race {
        explicit Race(asio::any_io_executor executor) : changed(executor) {}
        Event changed;
        std::list<asio::cancellation_signal> signals;
        detail::PendingApproval question{nobody_there()};
        std::exception_ptr problem;
        bool all_left = false;
    };
    struct Withdraw {
        std::shared_ptr<Race> race;
        ~Withdraw() {
            race->question.withdraw();
            for (auto& signal : race->signals) signal.emit(asio::cancellation_type::terminal);
        }
    };
    if (approvers.empty()) co_return nobody_there();
    if (!call.agreed_by.empty()) co_return agreed_before(call);
    const auto executor = co_await asio::this_coro::executor;
    const auto race = std::make_shared<Race>(executor);
    const Withdraw withdraw{race};
    for (std::size_t who = 0; who < approvers.size(); ++who) race->question.show(who);
    for (std::size_t who = 0; who < approvers.size(); ++who) {
        auto work = approvers[who](call);
        auto& signal = race->signals.emplace_back();
        asio::co_spawn(executor, std::move(work),
                       asio::bind_cancellation_slot(
                           signal.slot(), [race, who](std::exception_ptr error, Decision decision) {
                               if (error && race->question.open()) race->problem = error;
                               if (error || decision.verdict == Verdict::pass) {
                                   if (race->question.leave(who)) race->all_left = true;
                               } else {
                                   race->question.answer(who, std::move(decision));
                               }
                               race->changed.notify();
                           }));
    }
    while (race->question.open()) co_await race->changed.wait();
    if (race->all_left && race->problem) std::rethrow_exception(race->problem);
    co_return with_edits_kept(call, race->question.take());
}

}  // namespace ipybox
