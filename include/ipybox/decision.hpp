#pragma once
// What is said about a call that somebody judges.
#include <string>
#include <utility>

namespace ipybox {

enum class Verdict { pass, allow, deny };  // pass: not mine to judge

// What a policy, a person or a program says about one call.
struct Decision {
    Decision() = default;
    // why: becomes `reason`.
    Decision(Verdict answer, std::string why = {}) : verdict(answer), reason(std::move(why)) {}

    Verdict verdict = Verdict::pass;
    std::string reason;    // shown to the code that called, and audited
    bool expired = false;  // a denial because nobody answered in time
    std::string by;        // who decided, for the audit log: a rule, a person, a program
};

}  // namespace ipybox
