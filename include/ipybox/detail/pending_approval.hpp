#pragma once
// The life of one question "may this call happen?", without sockets and without a clock: events go
// in, and once they settled it, one decision comes out. A call is carried out at most once, and
// only after a yes of somebody who was asked.
#include <algorithm>
#include <cstdint>
#include <ipybox/decision.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipybox::detail {

class PendingApproval {
public:
    // Whoever can answer: a connection, an approver, the application. Numbers are never used again.
    using Answerer = std::uint64_t;

    // when_all_left: the decision when nobody is left who was asked and could answer yet. Whatever
    // it says, it is no yes.
    explicit PendingApproval(Decision when_all_left)
        : when_all_left_(denial(std::move(when_all_left))) {}

    // The question is put before `who`, who may answer from now on, unless it is settled.
    void show(Answerer who) {
        if (open() && !may_answer(who)) asked_.push_back(who);
    }
    bool may_answer(Answerer who) const {
        return std::find(asked_.begin(), asked_.end(), who) != asked_.end();
    }

    // These settle the question, and return whether it was they who did: the first event counts.

    // Of whoever was asked; that of anybody else is none. What is neither yes nor no is a no.
    bool answer(Answerer who, Decision said) {
        if (!may_answer(who)) return false;
        if (said.verdict == Verdict::allow) return settle(std::move(said));
        return settle(denial(std::move(said)));
    }
    // `who` cannot answer any more: the connection ended, or there is nobody behind it.
    bool leave(Answerer who) {
        const auto found = std::find(asked_.begin(), asked_.end(), who);
        if (found == asked_.end()) return false;
        asked_.erase(found);
        return asked_.empty() && settle(when_all_left_);
    }
    // Whoever wanted to make the call has gone: not even a yes that nobody took yet counts then.
    bool withdraw() {
        if (decision_ && decision_->verdict == Verdict::allow) decision_.reset();
        return settle(Decision(Verdict::deny, "withdrawn"));
    }
    // The time to answer is over. reason: what the code that called is told.
    bool expire(std::string reason) {
        Decision late(Verdict::deny, std::move(reason));
        late.expired = true;
        return settle(std::move(late));
    }

    // Nothing has settled it yet.
    bool open() const noexcept { return !decision_; }

    // What the call's owner may act on. A yes is given out once; while the question is open, and
    // after the yes was taken, it is a denial.
    Decision take() {
        if (!decision_) return Decision(Verdict::deny, "the question has no answer yet");
        Decision given = *decision_;
        if (given.verdict == Verdict::allow)
            decision_ = Decision(Verdict::deny, "the approval was used already");
        return given;
    }

private:
    static Decision denial(Decision said) {
        if (said.verdict == Verdict::pass && said.reason.empty())
            said.reason = "no approval policy allowed this call";
        said.verdict = Verdict::deny;
        return said;
    }
    bool settle(Decision decision) {
        if (decision_) return false;
        decision_ = std::move(decision);
        asked_.clear();
        return true;
    }

    Decision when_all_left_;
    std::vector<Answerer> asked_;
    std::optional<Decision> decision_;
};

}  // namespace ipybox::detail
