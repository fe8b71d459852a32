// Sessions over HTTP that servers forget, and streams that break off: every order of events.
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <ipybox/mcp/detail/http_session.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mcp_http_session_tests {

namespace json = boost::json;

using namespace ipybox;
using namespace std::chrono_literals;
using Session = detail::HttpClientSession;
using Renewal = Session::Renewal;
using Resumption = detail::StreamResumption;

namespace {

json::object object(std::string_view text) { return json::parse(text).as_object(); }

// A session that was opened as "first".
Session opened() {
    Session session;
    session.reset();
    session.sending("initialize", false, object(R"({"id":1,"method":"initialize"})"));
    session.opened("first");
    session.agreed("2025-06-18");
    return session;
}

std::string text_of(Renewal renewal) {
    switch (renewal) {
        case Renewal::wait:
            return "wait";
        case Renewal::send_again:
            return "again";
        case Renewal::failed:
            return "failed";
        case Renewal::renew:
            return "renew";
    }
    return {};
}
std::string text_of(Resumption::Decision decision) {
    switch (decision.next) {
        case Resumption::Next::connect:
            return std::to_string(decision.delay.count());
        case Resumption::Next::lost:
            return "lost";
        case Resumption::Next::given_up:
            return "given up";
    }
    return {};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_http_session)

BOOST_AUTO_TEST_CASE(only_what_a_session_was_used_for_is_sent_again) {
    struct Row {
        std::string_view used, method;
        bool modern;
        unsigned status;
        std::string_view body;
        bool forgotten;
    };
    for (const auto& row : std::vector<Row>{
             {"s", "tools/call", false, 404, "", true},
             {"s", "", false, 404, "", true},
             {"s", "notifications/cancelled", false, 404, "", true},
             {"s", "tools/call", false, 400, "No valid SESSION id", true},
             {"s", "tools/call", false, 400, "Server not initialized", true},
             {"s", "tools/call", false, 400, "bad arguments", false},
             {"s", "tools/call", false, 401, "your session has expired", false},
             {"s", "tools/call", false, 403, "session", false},
             {"s", "tools/call", false, 500, "session", false},
             // Nothing was forgotten that never was.
             {"", "tools/call", false, 404, "", false},
             {"", "tools/call", false, 400, "session", false},
             {"s", "initialize", false, 404, "", false},
             {"s", "tools/call", true, 404, "", false},
         })
        BOOST_TEST(Session::is_forgotten(row.used, row.method, row.modern, row.status, row.body) ==
                       row.forgotten,
                   row.method << ' ' << row.status << ' ' << row.body);
    BOOST_TEST(Session::repeatable("tools/list"));
    BOOST_TEST(!Session::repeatable("tools/call"));
    BOOST_TEST(!Session::repeatable(""));  // an answer of the client
}

BOOST_AUTO_TEST_CASE(ids_and_versions_that_no_header_can_hold_are_not_taken) {
    Session session = opened();
    const auto generation = session.generation();
    for (const auto& bad :
         {std::string("a b"), std::string("a\r\nX: y"), std::string("a\x7f"),
          std::string("\xc3\xb6"), std::string(1, '\0'), std::string(Session::max_id + 1, 'x')}) {
        BOOST_TEST(!session.opened(bad), bad);
        BOOST_TEST(session.id() == "first");
    }
    BOOST_TEST(session.generation() == generation);
    BOOST_TEST(session.opened(std::string(Session::max_id, 'x')));
    BOOST_TEST(session.generation() == generation + 1);
    for (const auto& bad :
         {std::string("2025-06-18\r\nX: y"), std::string("a b"), std::string(65, '2')}) {
        session.agreed("2025-06-18");
        session.agreed(bad);
        BOOST_TEST(session.protocol_version().empty(), bad);
    }
    // A server without sessions gives no id.
    BOOST_TEST(session.opened(""));
    BOOST_TEST(session.id().empty());
}

BOOST_AUTO_TEST_CASE(one_call_renews_for_all) {
    Session session = opened();
    const auto first = session.lost(session.generation());
    const auto second = session.lost(session.generation());
    BOOST_TEST(text_of(session.renewal(first)) == "renew");
    BOOST_TEST(session.id().empty());
    BOOST_TEST(session.protocol_version().empty());
    BOOST_TEST(text_of(session.renewal(second)) == "wait");
    BOOST_TEST(text_of(session.renewal(second)) == "wait");
    const auto message = session.initialize();
    BOOST_TEST(message.at("method").as_string() == "initialize");
    BOOST_TEST(message.at("id").as_string() ==
               "ipybox-session-" + std::to_string(first.generation));
    BOOST_TEST(session.opened("second"));
    session.agreed("2025-11-25");
    // Its renewal is not over until what holds for it has been said again.
    BOOST_TEST(text_of(session.renewal(second)) == "wait");
    session.end_renewal();
    BOOST_TEST(text_of(session.renewal(second)) == "again");
    BOOST_TEST(session.id() == "second");
    BOOST_TEST(session.protocol_version() == "2025-11-25");
    // Whoever learns late that the first one is gone need not renew the second.
    const auto late = session.lost(first.generation);
    BOOST_TEST(text_of(session.renewal(late)) == "again");
    const auto next = session.lost(session.generation());
    BOOST_TEST(text_of(session.renewal(next)) == "renew");
}

BOOST_AUTO_TEST_CASE(a_failed_renewal_fails_who_waited_and_is_tried_by_the_next) {
    Session session = opened();
    const auto first = session.lost(session.generation());
    const auto waiting = session.lost(session.generation());
    session.renewal(first);
    session.fail({errc::mcp_connection, "no"});
    session.end_renewal();
    BOOST_TEST(text_of(session.renewal(waiting)) == "failed");
    BOOST_TEST(session.failure()->detail() == "no");
    // As it was: the next call shows whether the server knows it again.
    BOOST_TEST(session.id() == "first");
    BOOST_TEST(session.protocol_version() == "2025-06-18");
    const auto next = session.lost(session.generation());
    BOOST_TEST(text_of(session.renewal(next)) == "renew");
    BOOST_TEST(!session.failure().has_value());
}

BOOST_AUTO_TEST_CASE(a_renewal_that_was_broken_off_passes_to_one_who_waits) {
    Session session = opened();
    const auto first = session.lost(session.generation());
    const auto second = session.lost(session.generation());
    const auto third = session.lost(session.generation());
    session.renewal(first);
    session.end_renewal();
    BOOST_TEST(text_of(session.renewal(second)) == "renew");
    BOOST_TEST(text_of(session.renewal(third)) == "wait");
    session.opened("second");
    session.end_renewal();
    BOOST_TEST(text_of(session.renewal(third)) == "again");
}

BOOST_AUTO_TEST_CASE(a_new_session_that_the_server_does_not_confirm_is_there_all_the_same) {
    Session session = opened();
    const auto first = session.lost(session.generation());
    const auto second = session.lost(session.generation());
    session.renewal(first);
    session.opened("second");
    session.fail({errc::mcp_connection, "after that"});
    session.end_renewal();
    BOOST_TEST(text_of(session.renewal(second)) == "again");
    BOOST_TEST(session.id() == "second");
}

BOOST_AUTO_TEST_CASE(a_transport_that_is_opened_during_a_renewal_keeps_nothing_of_it) {
    Session session = opened();
    session.renewal(session.lost(session.generation()));
    session.reset();
    session.end_renewal();
    session.end_renewal();
    BOOST_TEST(session.id().empty());
    BOOST_TEST(session.protocol_version().empty());
    BOOST_TEST(!session.renewing());
}

BOOST_AUTO_TEST_CASE(log_level_and_subscriptions_are_said_again) {
    Session session = opened();
    const auto subscribe = [](std::string_view uri) {
        return json::object{
            {"id", 7}, {"method", "resources/subscribe"}, {"params", json::object{{"uri", uri}}}};
    };
    session.sending("logging/setLevel", false,
                    object(R"({"id":2,"method":"logging/setLevel","params":{"level":"info"}})"));
    session.sending("logging/setLevel", false,
                    object(R"({"id":3,"method":"logging/setLevel","params":{"level":"error"}})"));
    session.sending("resources/subscribe", false, subscribe("a:1"));
    session.sending("resources/subscribe", false, subscribe("a:2"));
    session.sending("resources/subscribe", true, subscribe("modern:"));
    session.sending("resources/unsubscribe", false, object(R"({"params":{"uri":"a:1"}})"));
    session.sending("tools/call", false, object(R"({"id":4,"params":{"uri":"a:3"}})"));
    session.sending("resources/subscribe", false, object(R"({"id":5})"));
    const auto again = session.lasting();
    BOOST_REQUIRE(again.size() == 2u);
    BOOST_TEST(again[0].at("params").at("level").as_string() == "error");
    BOOST_TEST(again[0].at("id").as_string() == "ipybox-again-");
    BOOST_TEST(again[1].at("params").at("uri").as_string() == "a:2");
    BOOST_TEST(again[1].at("id").as_string() == "ipybox-again-a:2");
    for (std::size_t i = 0; i < 2 * Session::max_lasting; ++i)
        session.sending("resources/subscribe", false, subscribe("b:" + std::to_string(i)));
    BOOST_TEST(session.lasting().size() == Session::max_lasting);
    session.reset();
    BOOST_TEST(session.lasting().empty());
}

BOOST_AUTO_TEST_CASE(notifications_are_of_the_version_that_requests_state) {
    Session session;
    BOOST_TEST(session.modern_version_of("server/discover", "2026-07-28") == "2026-07-28");
    BOOST_TEST(session.modern_version_of("notifications/cancelled", "") == "2026-07-28");
    // The server turned out to be a legacy one.
    BOOST_TEST(session.modern_version_of("initialize", "").empty());
    BOOST_TEST(session.modern_version_of("tools/call", "").empty());
    session.modern_version_of("tools/call", "2026-07-28");
    session.reset();
    BOOST_TEST(session.modern_version_of("tools/call", "").empty());
}

BOOST_AUTO_TEST_CASE(an_answer_s_stream_is_taken_up_by_its_last_event) {
    Resumption stream;
    BOOST_TEST(text_of(stream.interrupted(false)) == "lost");  // no event has an id
    stream.named("7", std::nullopt);
    stream.named("", std::nullopt);
    BOOST_TEST(stream.last_id() == "7");
    BOOST_TEST(text_of(stream.interrupted(true)) == "lost");
    for (const char* delay : {"1000", "2000", "4000", "8000", "16000", "given up", "given up"})
        BOOST_TEST(text_of(stream.interrupted(false)) == delay);
}

BOOST_AUTO_TEST_CASE(an_event_gives_a_stream_its_attempts_back) {
    Resumption stream;
    stream.named("7", std::nullopt);
    for (int round = 0; round < 3; ++round) {
        stream.progressed();
        for (const char* delay : {"1000", "2000", "4000", "8000", "16000"})
            BOOST_TEST(text_of(stream.interrupted(false)) == delay);
    }
    // An id alone is no event: a server that only names ids does not keep a call forever.
    stream.named("8", 10ms);
    BOOST_TEST(text_of(stream.interrupted(false)) == "given up");
}

BOOST_AUTO_TEST_CASE(the_server_s_delay_is_kept_within_bounds) {
    struct Row {
        std::chrono::milliseconds asked;
        std::string first, second;
    };
    for (const auto& row : std::vector<Row>{{0ms, "50", "100"},
                                            {-5ms, "50", "100"},
                                            {300ms, "300", "600"},
                                            {50'000ms, "50000", "60000"},
                                            {std::chrono::milliseconds::max(), "60000", "60000"},
                                            {std::chrono::milliseconds::min(), "50", "100"}}) {
        Resumption stream;
        stream.named("1", row.asked);
        BOOST_TEST(text_of(stream.interrupted(false)) == row.first);
        BOOST_TEST(text_of(stream.interrupted(false)) == row.second);
    }
}

BOOST_AUTO_TEST_CASE(the_session_s_own_stream_is_given_up_when_it_fails_again_and_again) {
    Resumption stream;
    for (const char* delay : {"2000", "4000", "8000", "16000", "32000", "given up"})
        BOOST_TEST(text_of(stream.ended(1s)) == delay);
    Resumption other;
    BOOST_TEST(text_of(other.ended(5s)) == "2000");
    BOOST_TEST(text_of(other.ended(6s)) == "1000");  // it idled: no failure
    BOOST_TEST(text_of(other.ended(0s)) == "2000");
    other.progressed();
    BOOST_TEST(text_of(other.ended(0s)) == "1000");
    BOOST_TEST(text_of(other.ended(0s)) == "2000");
}

BOOST_AUTO_TEST_CASE(answers_to_a_resumption_are_told_apart) {
    using Answer = Resumption::Answer;
    const auto check = [](unsigned status, bool is_stream, Answer meaning) {
        BOOST_TEST((Resumption::answer(status, is_stream) == meaning), status);
    };
    check(200, true, Answer::stream);
    check(200, false, Answer::refused);
    check(400, false, Answer::refused);
    check(404, false, Answer::refused);
    check(405, false, Answer::refused);
    check(500, false, Answer::later);
    check(503, false, Answer::later);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_http_session_tests
