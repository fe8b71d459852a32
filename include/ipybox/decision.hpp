#pragma once
// What is said about a call that somebody judges.
#include <boost/json/object.hpp>
#include <memory>
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
    // Of whoever is asked, with a yes: it is one to these arguments and not to those of the call.
    // Null: to those of the call.
    std::shared_ptr<const boost::json::object> arguments;
};

}  // namespace ipybox
