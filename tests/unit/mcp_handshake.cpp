// How client and server find a version: every order in which answers, silence and ends may come.
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/mcp/detail/handshake.hpp>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace mcp_handshake_tests {

namespace json = boost::json;
using namespace ipybox;
using detail::Handshake;
using Action = Handshake::Action;

namespace {

// What a server may answer, by the name that the tables use.
json::object answer(const std::string& name) {
    static const std::map<std::string, std::string> answers = {
        {"modern", R"({"result":{"supportedVersions":["2031-01-01","2026-07-28"],
            "capabilities":{"tools":{}},"instructions":"read me",
            "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new"}}}})"},
        {"later", R"({"result":{"supportedVersions":["2031-01-01"]}})"},
        {"strange", R"({"result":{"supportedVersions":"2026-07-28"}})"},
        {"text", R"({"result":"2026-07-28"})"},
        {"nothing", R"({"result":{}})"},
        {"neither", R"({"jsonrpc":"2.0"})"},
        {"unknown", R"({"error":{"code":-32601,"message":"Method not found"}})"},
        {"no-object", R"({"error":"no"})"},
        {"old", R"({"error":{"code":-32022,"message":"no","data":{"supported":
            ["1999-01-01","2024-11-05","2025-06-18"]}}})"},
        {"future", R"({"error":{"code":-32022,"message":"no","data":{"supported":
            ["2031-01-01"]}}})"},
        {"formal", R"({"error":{"code":-32022,"message":"no","data":{"supported":
            ["2026-07-28"]}}})"},
        {"bare", R"({"error":{"code":-32022,"message":"no"}})"},
        {"mismatch", R"({"error":{"code":-32020,"message":"header mismatch"}})"},
        {"newest", R"({"error":{"code":-32602,"data":{"supported":["2025-11-25"]}}})"},
        {"2025-06-18", R"({"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},
            "serverInfo":{"name":"old"},"instructions":"read me too"}})"},
        {"2025-11-25", R"({"result":{"protocolVersion":"2025-11-25"}})"},
        {"2026-07-28", R"({"result":{"protocolVersion":"2026-07-28"}})"},
        {"1999-01-01", R"({"result":{"protocolVersion":"1999-01-01"}})"},
        {"number", R"({"result":{"protocolVersion":20250618}})"},
    };
    return json::parse(answers.at(name)).as_object();
}

std::string name_of(Action action, const Handshake& handshake) {
    switch (action) {
        case Action::discover:
            return "discover";
        case Action::initialize:
            return "initialize:" + std::string(handshake.version());
        case Action::confirm_end:
            return "confirm";
        case Action::restart:
            return "restart";
        case Action::wait:
            return "wait";
        case Action::connected:
            return "connected:" + handshake.agreed().version;
        case Action::give_up:
            break;
    }
    switch (handshake.failure()) {
        case Handshake::Failure::silence:
            return "silence:" + std::string(handshake.method());
        case Handshake::Failure::answer:
            return "answer:" + std::string(handshake.method());
        case Handshake::Failure::version:
            break;
    }
    return "version";
}

// Events: "1=modern" is an answer to request 1, "1-" silence, "1!" that it was lost; "ended",
// "proceed", "restarted". What was decided at each, beginning with the first thing to do.
std::string decisions(McpEra era, const std::string& events) {
    Handshake handshake(era);
    std::string decided = name_of(handshake.begin(), handshake);
    std::istringstream words(events);
    for (std::string event; words >> event;) {
        Action action = Action::wait;
        if (event == "ended") {
            handshake.ended();
            continue;
        }
        if (event == "proceed") {
            action = handshake.proceed();
        } else if (event == "restarted") {
            action = handshake.restarted();
        } else if (event.ends_with('-')) {
            action = handshake.silent(std::stoi(event));
        } else if (event.ends_with('!')) {
            action = handshake.lost(std::stoi(event));
        } else {
            const auto said = answer(event.substr(event.find('=') + 1));
            action = handshake.answered(std::stoi(event), said);
        }
        decided += ' ' + name_of(action, handshake);
    }
    return decided;
}

struct Row {
    McpEra era;
    std::string events, decisions;
};
void check(const std::vector<Row>& rows) {
    for (const auto& row : rows)
        BOOST_TEST(decisions(row.era, row.events) == row.decisions, row.events);
}

constexpr auto detect = McpEra::detect;
constexpr auto modern = McpEra::modern;
constexpr auto legacy = McpEra::legacy;

}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_handshake)

BOOST_AUTO_TEST_CASE(the_answer_to_the_question_tells_the_era) {
    check({
        {detect, "1=modern", "discover connected:2026-07-28"},
        {detect, "1=unknown 2=2025-06-18", "discover initialize:2025-11-25 connected:2025-06-18"},
        {detect, "1=old 2=2025-11-25", "discover initialize:2025-11-25 connected:2025-11-25"},
        {detect, "1- 2=2025-06-18", "discover initialize:2025-11-25 connected:2025-06-18"},
        {legacy, "1=2025-06-18", "initialize:2025-11-25 connected:2025-06-18"},
        {modern, "1=modern", "discover connected:2026-07-28"},
    });
    // What is no modern answer is a legacy server's, however strange.
    for (const char* strange : {"later", "strange", "text", "nothing", "neither", "unknown",
                                "no-object", "newest", "2025-06-18"})
        check({{detect, std::string("1=") + strange, "discover initialize:2025-11-25"}});
}

BOOST_AUTO_TEST_CASE(a_modern_server_without_a_version_in_common_is_not_asked_again) {
    for (const char* refusal : {"future", "bare", "mismatch"}) {
        check({{detect, std::string("1=") + refusal, "discover version"},
               {modern, std::string("1=") + refusal, "discover version"}});
    }
    Handshake handshake(detect);
    handshake.begin();
    handshake.answered(1, answer("future"));
    BOOST_TEST(handshake.problem() == "refuses protocol version 2026-07-28: no");
}

BOOST_AUTO_TEST_CASE(a_refusal_of_a_version_that_the_server_lists_is_asked_once_more) {
    check({
        {detect, "1=formal 2=modern", "discover discover connected:2026-07-28"},
        {detect, "1=formal 2=formal", "discover discover version"},
        {detect, "1=formal 2=unknown 3=2025-11-25",
         "discover discover initialize:2025-11-25 connected:2025-11-25"},
        {detect, "1=formal 2- 3=2025-11-25",
         "discover discover initialize:2025-11-25 connected:2025-11-25"},
        // The first question is over: nothing that still comes for it counts.
        {detect, "1=formal 1=modern 1- 1! 2=modern",
         "discover discover wait wait wait connected:2026-07-28"},
        {modern, "1=formal 2-", "discover discover silence:server/discover"},
    });
}

BOOST_AUTO_TEST_CASE(a_preset_era_is_not_left) {
    check({
        {modern, "1=unknown", "discover answer:server/discover"},
        {modern, "1=text", "discover answer:server/discover"},
        {modern, "1=nothing", "discover version"},
        {modern, "1=old", "discover answer:server/discover"},
        {modern, "1-", "discover silence:server/discover"},
        {modern, "1!", "discover answer:server/discover"},
        {modern, "ended 1!", "discover answer:server/discover"},
        {legacy, "1=unknown", "initialize:2025-11-25 answer:initialize"},
        {legacy, "1=modern", "initialize:2025-11-25 version"},
    });
    Handshake handshake(modern);
    handshake.begin();
    handshake.answered(1, answer("nothing"));
    BOOST_TEST(handshake.problem() == "does not speak protocol version 2026-07-28");
}

BOOST_AUTO_TEST_CASE(only_versions_that_are_known_are_agreed_on) {
    check({
        {legacy, "1=1999-01-01", "initialize:2025-11-25 version"},
        {legacy, "1=number", "initialize:2025-11-25 version"},
        {legacy, "1=nothing", "initialize:2025-11-25 version"},
        {legacy, "1=text", "initialize:2025-11-25 answer:initialize"},
        // A version without initialize is none for it.
        {legacy, "1=2026-07-28", "initialize:2025-11-25 version"},
    });
    Handshake handshake(legacy);
    handshake.begin();
    handshake.answered(1, answer("1999-01-01"));
    BOOST_TEST(handshake.problem() ==
               "speaks protocol version \"1999-01-01\"; this client knows 2026-07-28, 2025-11-25, "
               "2025-06-18, 2025-03-26 and 2024-11-05");
}

BOOST_AUTO_TEST_CASE(a_refused_version_is_replaced_once_by_one_that_the_server_lists) {
    check({
        {legacy, "1=old 2=2025-06-18",
         "initialize:2025-11-25 initialize:2025-06-18 connected:2025-06-18"},
        {legacy, "1=old 2=old", "initialize:2025-11-25 initialize:2025-06-18 answer:initialize"},
        {legacy, "1=newest", "initialize:2025-11-25 answer:initialize"},
        {legacy, "1=future", "initialize:2025-11-25 answer:initialize"},
        {legacy, "1=old 1=2025-11-25 2-",
         "initialize:2025-11-25 initialize:2025-06-18 wait silence:initialize"},
    });
}

BOOST_AUTO_TEST_CASE(a_late_answer_counts_if_initialize_is_refused) {
    check({
        {detect, "1- 1=modern 2=unknown",
         "discover initialize:2025-11-25 wait connected:2026-07-28"},
        {detect, "1- 1=future 2=unknown", "discover initialize:2025-11-25 wait version"},
        {detect, "1- 1=unknown 2=unknown", "discover initialize:2025-11-25 wait answer:initialize"},
        // Whoever takes both is taken at the later word.
        {detect, "1- 1=modern 2=2025-06-18",
         "discover initialize:2025-11-25 wait connected:2025-06-18"},
        {detect, "1- 1=modern 2-", "discover initialize:2025-11-25 wait silence:initialize"},
        {detect, "1- 2=unknown 1=modern", "discover initialize:2025-11-25 answer:initialize wait"},
        // Only the first of two answers counts.
        {detect, "1- 1=unknown 1=modern 2=unknown",
         "discover initialize:2025-11-25 wait wait answer:initialize"},
        {detect, "1=unknown 1=modern 2=unknown",
         "discover initialize:2025-11-25 wait answer:initialize"},
        {detect, "1- 2=old 1=modern 3=unknown",
         "discover initialize:2025-11-25 initialize:2025-06-18 wait connected:2026-07-28"},
    });
}

BOOST_AUTO_TEST_CASE(a_server_that_ends_at_the_question_is_started_again) {
    check({
        {detect, "ended 1! restarted 2=2025-06-18",
         "discover restart initialize:2025-11-25 connected:2025-06-18"},
        {detect, "1! ended proceed restarted 2=2025-06-18",
         "discover confirm restart initialize:2025-11-25 connected:2025-06-18"},
        {detect, "1! proceed 2=2025-06-18",
         "discover confirm initialize:2025-11-25 connected:2025-06-18"},
        {detect, "ended 1=unknown restarted", "discover restart initialize:2025-11-25"},
        {detect, "ended 1- restarted", "discover restart initialize:2025-11-25"},
        // What it said before it ended holds.
        {detect, "ended 1=modern", "discover connected:2026-07-28"},
        // Once: a server that ends at initialize has failed.
        {detect, "ended 1! restarted ended 2!",
         "discover restart initialize:2025-11-25 answer:initialize"},
        {legacy, "ended 1!", "initialize:2025-11-25 answer:initialize"},
        // The new process was not asked.
        {detect, "ended 1! restarted 1=modern 0=modern 2=unknown",
         "discover restart initialize:2025-11-25 wait wait answer:initialize"},
        {detect, "1! 1=modern ended proceed 1=modern restarted 2=unknown",
         "discover confirm wait restart wait initialize:2025-11-25 answer:initialize"},
    });
}

BOOST_AUTO_TEST_CASE(what_was_not_asked_and_what_comes_afterwards_changes_nothing) {
    check({
        {detect, "0=modern 2=modern -1=modern 7- 0! proceed restarted 1=modern",
         "discover wait wait wait wait wait wait wait connected:2026-07-28"},
        {detect, "1! 1- 1! 2=2025-06-18 restarted proceed proceed",
         "discover confirm wait wait wait wait initialize:2025-11-25 wait"},
        {detect, "ended 1! proceed 1! 2=2025-06-18 restarted restarted",
         "discover restart wait wait wait initialize:2025-11-25 wait"},
        {detect, "1=modern 1=future 1- 1! ended proceed restarted 2=2025-06-18",
         "discover connected:2026-07-28 wait wait wait wait wait wait"},
        {legacy, "1- 1=2025-06-18 1- 1!",
         "initialize:2025-11-25 silence:initialize wait wait wait"},
    });
}

BOOST_AUTO_TEST_CASE(what_the_server_says_of_itself_is_kept) {
    Handshake newer(detect);
    newer.begin();
    newer.answered(1, answer("modern"));
    BOOST_TEST((newer.agreed().era == McpEra::modern));
    BOOST_TEST(newer.agreed().server_info.at("name").as_string() == "new");
    BOOST_TEST(newer.agreed().capabilities.contains("tools"));
    BOOST_TEST(newer.agreed().instructions == "read me");
    Handshake older(legacy);
    older.begin();
    older.answered(1, answer("2025-06-18"));
    BOOST_TEST((older.agreed().era == McpEra::legacy));
    BOOST_TEST(older.agreed().server_info.at("name").as_string() == "old");
    BOOST_TEST(older.agreed().capabilities.contains("tools"));
    BOOST_TEST(older.agreed().instructions == "read me too");
}

BOOST_AUTO_TEST_CASE(an_answer_is_awaited_briefly_only_where_there_is_another_way) {
    Handshake unknown(detect), known(modern), old(legacy);
    unknown.begin();
    known.begin();
    old.begin();
    BOOST_TEST(unknown.brief());
    BOOST_TEST(!known.brief());
    BOOST_TEST(!old.brief());
    unknown.silent(1);
    BOOST_TEST(!unknown.brief());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_handshake_tests
