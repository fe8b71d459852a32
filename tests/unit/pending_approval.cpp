// The life of a question as tables of events, in orders that a hostile or unlucky world makes.
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/pending_approval.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace pending_approval_tests {

using namespace ipybox;
using ipybox::detail::PendingApproval;

namespace {
PendingApproval question() { return PendingApproval(Decision(Verdict::deny, "all left")); }

// One event: "show 1", "yes 1", "no 1", "pass 1", "leave 1", "withdraw", "expire", "take". What
// comes back: whether it settled the question or, for "take", the verdict and the reason.
std::string play(PendingApproval& one, const std::string& event) {
    std::istringstream words(event);
    std::string what;
    PendingApproval::Answerer who = 0;
    words >> what >> who;
    const auto settled = [](bool did) {
        return did ? std::string("settles") : std::string("nothing");
    };
    if (what == "show") one.show(who);
    if (what == "yes") return settled(one.answer(who, Decision(Verdict::allow, "yes")));
    if (what == "no") return settled(one.answer(who, Decision(Verdict::deny, "no")));
    if (what == "pass") return settled(one.answer(who, Decision()));
    if (what == "leave") return settled(one.leave(who));
    if (what == "withdraw") return settled(one.withdraw());
    if (what == "expire") return settled(one.expire("late"));
    if (what != "take") return "";
    const auto decision = one.take();
    const std::string verdict = decision.verdict == Verdict::allow  ? "allow"
                                : decision.verdict == Verdict::deny ? "deny"
                                                                    : "pass";
    return verdict + " " + decision.reason + (decision.expired ? " (expired)" : "");
}

struct Step {
    std::string event, outcome;
};
struct Life {
    std::string name;
    std::vector<Step> steps;
};

const std::vector<Life> lives = {
    {"asked, shown, answered",
     {{"show 1", ""},
      {"take", "deny the question has no answer yet"},
      {"yes 1", "settles"},
      {"take", "allow yes"}}},
    {"denied", {{"show 1", ""}, {"no 1", "settles"}, {"take", "deny no"}, {"take", "deny no"}}},
    {"the first of several counts",
     {{"show 1", ""},
      {"show 2", ""},
      {"no 2", "settles"},
      {"yes 1", "nothing"},
      {"take", "deny no"}}},
    {"a no does not undo a yes",
     {{"show 1", ""},
      {"show 2", ""},
      {"yes 1", "settles"},
      {"no 2", "nothing"},
      {"take", "allow yes"}}},
    {"answered twice by the same",
     {{"show 1", ""}, {"no 1", "settles"}, {"yes 1", "nothing"}, {"take", "deny no"}}},
    {"a yes is given out once",
     {{"show 1", ""},
      {"yes 1", "settles"},
      {"take", "allow yes"},
      {"take", "deny the approval was used already"},
      {"yes 1", "nothing"},
      {"take", "deny the approval was used already"}}},
    {"answered before it was shown",
     {{"yes 1", "nothing"}, {"show 1", ""}, {"take", "deny the question has no answer yet"}}},
    {"answered by somebody who was not asked",
     {{"show 1", ""},
      {"yes 2", "nothing"},
      {"no 2", "nothing"},
      {"take", "deny the question has no answer yet"}}},
    {"answered by nobody at all",
     {{"yes 0", "nothing"}, {"take", "deny the question has no answer yet"}}},
    {"neither yes nor no is a no",
     {{"show 1", ""},
      {"pass 1", "settles"},
      {"yes 1", "nothing"},
      {"take", "deny no approval policy allowed this call"}}},
    {"withdrawn, then answered",
     {{"show 1", ""}, {"withdraw", "settles"}, {"yes 1", "nothing"}, {"take", "deny withdrawn"}}},
    {"withdrawn before anybody was asked",
     {{"withdraw", "settles"}, {"show 1", ""}, {"yes 1", "nothing"}, {"take", "deny withdrawn"}}},
    {"answered, then withdrawn before it was carried out",
     {{"show 1", ""}, {"yes 1", "settles"}, {"withdraw", "settles"}, {"take", "deny withdrawn"}}},
    {"carried out, then withdrawn",
     {{"show 1", ""}, {"yes 1", "settles"}, {"take", "allow yes"}, {"withdraw", "nothing"}}},
    {"denied, then withdrawn",
     {{"show 1", ""}, {"no 1", "settles"}, {"withdraw", "nothing"}, {"take", "deny no"}}},
    {"expired, then answered",
     {{"show 1", ""},
      {"expire", "settles"},
      {"yes 1", "nothing"},
      {"take", "deny late (expired)"}}},
    {"answered, then expired",
     {{"show 1", ""}, {"yes 1", "settles"}, {"expire", "nothing"}, {"take", "allow yes"}}},
    {"expired twice, withdrawn after",
     {{"expire", "settles"},
      {"expire", "nothing"},
      {"withdraw", "nothing"},
      {"take", "deny late (expired)"}}},
    {"the last one leaves",
     {{"show 1", ""}, {"leave 1", "settles"}, {"yes 1", "nothing"}, {"take", "deny all left"}}},
    {"one of two leaves, the other answers",
     {{"show 1", ""},
      {"show 2", ""},
      {"leave 1", "nothing"},
      {"yes 1", "nothing"},
      {"yes 2", "settles"},
      {"take", "allow yes"}}},
    {"who left and came back under another number",
     {{"show 1", ""},
      {"show 2", ""},
      {"leave 1", "nothing"},
      {"show 3", ""},
      {"leave 2", "nothing"},
      {"yes 3", "settles"},
      {"take", "allow yes"}}},
    {"nobody comes back to what is settled",
     {{"show 1", ""},
      {"leave 1", "settles"},
      {"show 2", ""},
      {"yes 2", "nothing"},
      {"take", "deny all left"}}},
    {"who leaves without having been asked",
     {{"show 1", ""},
      {"leave 2", "nothing"},
      {"leave 2", "nothing"},
      {"yes 1", "settles"},
      {"take", "allow yes"}}},
    {"leaving twice counts once",
     {{"show 1", ""},
      {"show 2", ""},
      {"leave 1", "nothing"},
      {"leave 1", "nothing"},
      {"yes 2", "settles"},
      {"take", "allow yes"}}},
    {"shown twice, left once",
     {{"show 1", ""},
      {"show 1", ""},
      {"leave 1", "settles"},
      {"yes 1", "nothing"},
      {"take", "deny all left"}}},
    {"answered, then all leave",
     {{"show 1", ""}, {"yes 1", "settles"}, {"leave 1", "nothing"}, {"take", "allow yes"}}},
};
}  // namespace

BOOST_AUTO_TEST_SUITE(pending_approval)

BOOST_AUTO_TEST_CASE(lives_of_a_question) {
    for (const auto& life : lives) {
        auto one = question();
        BOOST_TEST_CONTEXT(life.name) {
            for (const auto& step : life.steps) BOOST_TEST_CONTEXT(step.event) {
                    BOOST_TEST(play(one, step.event) == step.outcome);
                }
        }
    }
}

// All orders of up to six events: what comes out as a yes was said by somebody who had been asked
// and was still there, before anything else settled it, and comes out once.
BOOST_AUTO_TEST_CASE(no_order_of_events_makes_a_yes_of_none) {
    const std::vector<std::string> events = {"show 1",  "show 2",   "yes 1",  "no 2",
                                             "leave 1", "withdraw", "expire", "take"};
    constexpr std::size_t longest = 6;
    std::size_t wrong = 0, allowed = 0;
    for (std::size_t order = 0, all = 1u << (3 * longest); order < all; ++order) {
        auto one = question();
        bool first_asked = false, second_asked = false, settled = false, yes = false, taken = false;
        for (std::size_t at = 0; at < longest; ++at) {
            const auto& event = events[(order >> (3 * at)) % 8];
            const auto outcome = play(one, event);
            if (event == "take") {
                const bool allows = outcome.starts_with("allow");
                wrong += allows != (yes && !taken) || outcome.starts_with("pass");
                taken = taken || allows;
                allowed += allows;
                continue;
            }
            if (event == "withdraw" && yes && !taken) {
                wrong += outcome != "settles";
                yes = false;
                continue;
            }
            if (settled) {
                wrong += outcome == "settles";
                continue;
            }
            if (event == "show 1") first_asked = true;
            if (event == "show 2") second_asked = true;
            bool settles = event == "withdraw" || event == "expire";
            if (event == "yes 1") yes = settles = first_asked;
            if (event == "no 2") settles = second_asked;
            if (event == "leave 1") {
                settles = first_asked && !second_asked;
                first_asked = false;
            }
            wrong += settles != (outcome == "settles");
            settled = settles;
            wrong += one.open() == settled;
        }
    }
    BOOST_TEST(wrong == 0u);
    BOOST_TEST(allowed > 1000u);
}

BOOST_AUTO_TEST_CASE(nothing_said_at_the_beginning_is_a_yes) {
    PendingApproval one(Decision(Verdict::allow, "careless"));
    one.show(1);
    BOOST_TEST(one.leave(1));
    BOOST_TEST((one.take().verdict == Verdict::deny));
}

BOOST_AUTO_TEST_CASE(who_decided_stays_with_the_decision) {
    auto one = question();
    one.show(7);
    Decision yes(Verdict::allow);
    yes.by = "approval channel";
    BOOST_TEST(one.answer(7, yes));
    BOOST_TEST(one.take().by == "approval channel");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace pending_approval_tests
