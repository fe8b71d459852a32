// The state of a distant kernel's link under hostile orders of events: what the kernel's end or a
// server between may send at any time.
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <ipybox/jupyter/link.hpp>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unit_kernel_link_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using Arrival = ReliableLink::Arrival;
using Answer = ReliableLink::Answer;
using Time = ReliableLink::Time;

namespace {

constexpr std::size_t most_kept = 100'000;
constexpr auto largest = std::numeric_limits<std::int64_t>::max();

std::unique_ptr<LinkMessage> message(json::object metadata, std::string bytes = {}) {
    auto received = std::make_unique<LinkMessage>();
    received->bytes = std::move(bytes);
    received->message.channel = "iopub";
    received->message.type = "comm_open";
    received->message.metadata = std::move(metadata);
    return received;
}
std::unique_ptr<LinkMessage> numbered(std::int64_t number, std::string bytes = {}) {
    return message({{"ipybox", number}, {"type", "stream"}, {"again", 0}}, std::move(bytes));
}

// The kernel's answer to a request to resume.
json::object answer(std::string_view token, std::int64_t after, std::int64_t received = 0,
                    bool whole = true) {
    return {{"token", token}, {"after", after}, {"whole", whole}, {"received", received}};
}

// A link that the kernel's end has answered: it has published `last` messages before.
ReliableLink linked(std::int64_t last = 0) {
    ReliableLink link("session", most_kept);
    BOOST_TEST_REQUIRE(link.resume(Time()));
    BOOST_TEST_REQUIRE((link.answered(answer(link.token(), last)) == Answer::resumed));
    return link;
}

Arrival arrive(ReliableLink& link, std::int64_t number) { return link.arrived(*numbered(number)); }

json::object operation() { return {{"op", "data"}}; }

// One event and what must come of it.
struct Step {
    enum Kind { published, resume, reconnect, answered } kind;
    std::int64_t number = 0;  // of the message, or after which an answer goes on
    Arrival arrival = Arrival::next;
    Answer outcome = Answer::resumed;
    const char* token = nullptr;  // of the answer; null: the one awaited
    bool whole = true;
};
constexpr Step take(std::int64_t number, Arrival arrival) {
    return {Step::published, number, arrival, Answer::resumed, nullptr, true};
}
constexpr Step tell(std::int64_t after, Answer outcome, const char* token = nullptr,
                    bool whole = true) {
    return {Step::answered, after, Arrival::next, outcome, token, whole};
}
constexpr Step resume{Step::resume};
constexpr Step reconnect{Step::reconnect};

struct Story {
    const char* what;
    std::vector<Step> steps;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(kernel_link)

BOOST_AUTO_TEST_CASE(orders_of_numbers_and_answers) {
    // Each begins with a link whose kernel has published 10 messages.
    const std::vector<Story> stories = {
        {"in order", {take(11, Arrival::next), take(12, Arrival::next)}},
        {"the same message twice",
         {take(11, Arrival::next), take(11, Arrival::dropped), take(12, Arrival::next)}},
        {"a number that goes back",
         {take(11, Arrival::next), take(3, Arrival::dropped), take(0, Arrival::dropped),
          take(12, Arrival::next)}},
        {"a gap is not taken, and does not move the sequence",
         {take(13, Arrival::gap), take(11, Arrival::next), take(13, Arrival::gap)}},
        {"the largest number there is", {take(largest, Arrival::gap), take(11, Arrival::next)}},
        {"nothing is taken while resuming",
         {take(12, Arrival::gap), resume, take(11, Arrival::dropped), take(12, Arrival::dropped),
          tell(10, Answer::resumed), take(11, Arrival::next), take(12, Arrival::next)}},
        {"an answer nobody awaits", {tell(5, Answer::stale), take(11, Arrival::next)}},
        {"an answer without a token, when none is awaited",
         {tell(5, Answer::stale, ""), take(11, Arrival::next)}},
        {"an answer twice",
         {resume, tell(10, Answer::resumed, "session-2"), tell(10, Answer::stale, "session-2"),
          take(11, Arrival::next)}},
        {"an answer of a link nobody knows",
         {resume, tell(10, Answer::stale, "other-1"), take(11, Arrival::dropped),
          tell(10, Answer::resumed)}},
        {"the answer to an earlier request, over the old connection",
         {resume, reconnect, tell(10, Answer::stale, "session-2"), take(11, Arrival::dropped),
          tell(10, Answer::resumed, "session-3"), take(11, Arrival::next)}},
        {"an answer that goes on further ahead", {resume, tell(12, Answer::lost)}},
        {"an answer that goes back", {resume, tell(9, Answer::lost)}},
        {"an answer that says that something is gone",
         {resume, tell(10, Answer::lost, nullptr, false)}},
        {"a loss that answers nothing is none",
         {resume, tell(10, Answer::stale, "other", false), tell(10, Answer::resumed)}},
        {"a second gap after one",
         {take(12, Arrival::gap), resume, tell(10, Answer::resumed), take(12, Arrival::gap), resume,
          tell(10, Answer::resumed), take(11, Arrival::next)}},
        {"a connection that breaks again and again",
         {reconnect, reconnect, reconnect, take(11, Arrival::dropped),
          tell(10, Answer::stale, "session-3"), tell(10, Answer::resumed, "session-4"),
          take(11, Arrival::next)}},
    };
    for (const auto& story : stories) {
        BOOST_TEST_CONTEXT(story.what) {
            auto link = linked(10);
            for (std::size_t i = 0; i < story.steps.size(); ++i) {
                const auto& step = story.steps[i];
                BOOST_TEST_CONTEXT("step " << i) {
                    if (step.kind == Step::published) {
                        BOOST_TEST((arrive(link, step.number) == step.arrival));
                    } else if (step.kind == Step::resume) {
                        BOOST_TEST(link.resume(Time()));
                    } else if (step.kind == Step::reconnect) {
                        BOOST_TEST(link.reconnected(Time()));
                    } else {
                        const std::string token = step.token ? step.token : link.token();
                        const auto data = answer(token, step.number, 0, step.whole);
                        BOOST_TEST((link.answered(data) == step.outcome));
                    }
                }
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(what_bears_no_proper_number) {
    auto link = linked();
    const std::vector<std::pair<json::object, Arrival>> cases = {
        {{}, Arrival::of_server},
        {{{"type", "stream"}}, Arrival::of_server},
        {{{"ipybox", nullptr}, {"type", "stream"}}, Arrival::malformed},
        {{{"ipybox", "1"}, {"type", "stream"}}, Arrival::malformed},
        {{{"ipybox", 1.0}, {"type", "stream"}}, Arrival::malformed},
        {{{"ipybox", -1}, {"type", "stream"}}, Arrival::malformed},
        {{{"ipybox", std::numeric_limits<std::uint64_t>::max()}, {"type", "stream"}},
         Arrival::malformed},
        {{{"ipybox", 1}}, Arrival::malformed},
        {{{"ipybox", 1}, {"type", 7}}, Arrival::malformed},
        {{{"ipybox", 0}, {"type", "resume"}}, Arrival::answer},
        {{{"ipybox", 0}, {"type", "stream"}}, Arrival::dropped},
        {{{"ipybox", 1}, {"type", "stream"}}, Arrival::next},
    };
    for (const auto& [metadata, expected] : cases) {
        const auto received = message(metadata);
        BOOST_TEST((link.arrived(*received) == expected), json::value(metadata));
        const bool own = expected != Arrival::of_server && expected != Arrival::malformed;
        BOOST_TEST((received->message.type == "comm_open") == !own);
        BOOST_TEST(received->number == (expected == Arrival::next ? 1U : 0U));
    }
}

BOOST_AUTO_TEST_CASE(answers_without_their_numbers) {
    auto link = linked();
    BOOST_TEST(link.resume(Time()));
    for (const char* name : {"after", "whole", "received"}) {
        for (const json::value& wrong : {json::value(nullptr), json::value("0"), json::value(-1),
                                         json::value(0.5), json::value(json::array())}) {
            auto data = answer(link.token(), 0);
            data[name] = wrong;
            BOOST_TEST((link.answered(data) == Answer::malformed), name << ' ' << wrong);
        }
        auto data = answer(link.token(), 0);
        data.erase(name);
        BOOST_TEST((link.answered(data) == Answer::malformed), name);
    }
    auto data = answer(link.token(), 0);
    data["token"] = 7;
    BOOST_TEST((link.answered(data) == Answer::stale));
    // None of this ended the wait for the true one.
    BOOST_TEST(link.resuming());
    BOOST_TEST((link.answered(answer(link.token(), 0)) == Answer::resumed));
}

BOOST_AUTO_TEST_CASE(before_the_first_answer_nothing_counts) {
    ReliableLink link("session", most_kept);
    BOOST_TEST(!link.linked());
    BOOST_TEST((arrive(link, 1) == Arrival::dropped));
    BOOST_TEST((link.answered(answer("", 0)) == Answer::stale));
    BOOST_TEST(!link.reconnected(Time()));
    BOOST_TEST(!link.resuming());

    BOOST_TEST(link.resume(Time()));
    // A connection that breaks now takes the request along; the same one is repeated.
    const auto token = link.token();
    BOOST_TEST(!link.reconnected(Time()));
    BOOST_TEST(link.token() == token);
    const auto request = link.ask(Time());
    BOOST_TEST_REQUIRE(request.has_value());
    BOOST_TEST(*request == (json::object{{"op", "resume"}, {"token", token}, {"after", nullptr}}));
    BOOST_TEST((link.answered(answer(token, 0, 0, false)) == Answer::lost));
    // The first answer says where the sequence begins, wherever that is.
    BOOST_TEST((link.answered(answer(token, largest)) == Answer::resumed));
    BOOST_TEST((arrive(link, largest) == Arrival::dropped));
    BOOST_TEST((arrive(link, 1) == Arrival::dropped));
}

BOOST_AUTO_TEST_CASE(requests_are_repeated_at_growing_pauses) {
    auto link = linked(7);
    Time now = Time() + 1h;
    BOOST_TEST(!link.ask(now).has_value());
    BOOST_TEST(link.resume(now));
    BOOST_TEST(!link.resume(now + 1s));  // under way: the pauses go on as they were
    std::vector<std::int64_t> pauses;
    for (int i = 0; i < 8; ++i) {
        const auto request = link.ask(now);
        BOOST_TEST_REQUIRE(request.has_value());
        BOOST_TEST(*request ==
                   (json::object{{"op", "resume"}, {"token", link.token()}, {"after", 7}}));
        BOOST_TEST(!link.ask(now).has_value());
        const auto next = link.next_ask();
        BOOST_TEST(!link.ask(next - 1ns).has_value());
        pauses.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(next - now).count());
        now = next;
    }
    BOOST_TEST(pauses == (std::vector<std::int64_t>{100, 200, 400, 800, 1600, 2000, 2000, 2000}),
               boost::test_tools::per_element());
    // A new connection begins at the shortest pause.
    BOOST_TEST(link.reconnected(now));
    BOOST_TEST(link.ask(now).has_value());
    BOOST_TEST((link.next_ask() - now == ReliableLink::first_pause));
    BOOST_TEST((link.answered(answer(link.token(), 7)) == Answer::resumed));
    BOOST_TEST(!link.ask(now + 1h).has_value());
}

BOOST_AUTO_TEST_CASE(what_was_read_is_acknowledged) {
    auto link = linked();
    const auto publish = [&](std::int64_t number, bool keep) {
        auto received = numbered(number);
        BOOST_TEST_REQUIRE((link.arrived(*received) == Arrival::next));
        if (keep) BOOST_TEST_REQUIRE(link.keep(std::move(received)));
    };
    // By number of messages.
    for (std::int64_t i = 1; i < 500; ++i) {
        publish(i, false);
        BOOST_TEST_REQUIRE(!link.consumed(10).has_value());
    }
    publish(500, false);
    auto acknowledgement = link.consumed(10);
    BOOST_TEST_REQUIRE(acknowledgement.has_value());
    BOOST_TEST(*acknowledgement == (json::object{{"op", "ack"}, {"number_seen", 500}}));
    // By bytes; and it begins from zero each time.
    BOOST_TEST(!link.consumed((1U << 20) - 1).has_value());
    BOOST_TEST(link.consumed(1).has_value());
    BOOST_TEST(!link.consumed(1).has_value());
    // A little that waits here is safe, and does not hold up what came after it.
    publish(501, true);
    publish(502, false);
    acknowledgement = link.consumed(1U << 20);
    BOOST_TEST_REQUIRE(acknowledgement.has_value());
    BOOST_TEST(acknowledgement->at("number_seen") == 502);
}

BOOST_AUTO_TEST_CASE(much_that_is_unread_makes_the_kernel_wait) {
    ReliableLink link("session", std::size_t{32} << 20);
    link.resume(Time());
    BOOST_TEST((link.answered(answer(link.token(), 0)) == Answer::resumed));
    const auto keep = [&](std::unique_ptr<LinkMessage> received) {
        return link.keep(std::move(received));
    };
    // Not of the sequence: it is no number to go by.
    BOOST_TEST(keep(message({}, std::string(10, 'x'))));
    for (std::int64_t number = 1; number <= 4; ++number) {
        auto received = numbered(number, std::string(1 << 20, 'x'));
        BOOST_TEST((link.arrived(*received) == Arrival::next));
        BOOST_TEST(keep(std::move(received)));
    }
    BOOST_TEST((arrive(link, 5) == Arrival::next));
    auto acknowledgement = link.consumed(1U << 20);
    BOOST_TEST_REQUIRE(acknowledgement.has_value());
    BOOST_TEST(acknowledgement->at("number_seen") == 0);
    for (const std::uint64_t number : {0U, 1U}) {
        const auto received = link.take();
        BOOST_TEST_REQUIRE(received);
        BOOST_TEST(received->number == number);
    }
    acknowledgement = link.consumed(1U << 20);
    BOOST_TEST_REQUIRE(acknowledgement.has_value());
    BOOST_TEST(acknowledgement->at("number_seen") == 5);  // 3 MiB are few again
}

BOOST_AUTO_TEST_CASE(more_unread_than_the_limit_is_refused) {
    auto link = linked();
    BOOST_TEST(link.shared_unread() == 0U);
    BOOST_TEST(link.keep(numbered(1, std::string(most_kept / 2, 'x'))));
    const auto size = link.unread_size();
    BOOST_TEST(size > most_kept / 2);
    BOOST_TEST(!link.keep(numbered(2, std::string(most_kept / 2, 'x'))));
    BOOST_TEST(link.unread_size() == size);
    // Not only bytes on the wire count: small messages and what was parsed have their weight.
    auto parsed = numbered(3);
    json::array numbers(most_kept / sizeof(json::value));
    parsed->message.parsed = json::object{{"numbers", std::move(numbers)}};
    BOOST_TEST(!link.keep(std::move(parsed)));
    int small = 0;
    while (link.keep(numbered(4))) BOOST_TEST_REQUIRE(++small < 1000);
    BOOST_TEST(small > 10);

    BOOST_TEST(link.take()->number == 0U);
    link.forget_unread();
    BOOST_TEST(link.unread_size() == 0U);
    BOOST_TEST(!link.take());
    // What is being read has a copy soon; a part is free of the budget that all share.
    link.reading(2U << 20);
    BOOST_TEST(link.unread_size() == 4U << 20);
    BOOST_TEST(link.shared_unread() == 3U << 20);
    link.reading(0);
    BOOST_TEST(link.shared_unread() == 0U);
}

BOOST_AUTO_TEST_CASE(operations_are_kept_until_the_kernel_has_them) {
    ReliableLink link("session", most_kept);
    const auto& first = link.send(operation(), "abc");
    BOOST_TEST(first.number == 1U);
    BOOST_TEST(first.content == (json::object{{"op", "data"}, {"number", 1}}));
    BOOST_TEST(!link.flowing());
    link.send(operation(), "de");
    link.send(operation(), "");
    BOOST_TEST(link.sent_bytes() == 5U);

    // The first answer says what has arrived; the rest is to be sent again, oldest first.
    link.resume(Time());
    BOOST_TEST(!link.flowing());
    BOOST_TEST((link.answered(answer(link.token(), 0, 1)) == Answer::resumed));
    BOOST_TEST(link.flowing());
    BOOST_TEST(link.sent_bytes() == 2U);
    BOOST_TEST_REQUIRE(link.sent().size() == 2U);
    BOOST_TEST(link.sent().front().number == 2U);
    BOOST_TEST(link.sent().front().buffer == "de");
    BOOST_TEST(!link.on_its_way(1));
    BOOST_TEST(link.on_its_way(2));

    // An end while resuming: nothing flows, nothing is lost, acknowledgements count all the same.
    link.resume(Time());
    link.send(operation(), "f");
    BOOST_TEST(!link.flowing());
    link.acknowledged(2);
    BOOST_TEST(link.sent().size() == 2U);
    BOOST_TEST((link.answered(answer(link.token(), 0, 2, false)) == Answer::lost));
    BOOST_TEST(!link.flowing());
    BOOST_TEST(link.sent().size() == 2U);
}

BOOST_AUTO_TEST_CASE(acknowledgements_that_lie) {
    auto link = linked();
    link.acknowledged(5);  // of what was never sent
    link.send(operation(), "abc");
    BOOST_TEST(link.on_its_way(1));
    BOOST_TEST(link.sent_bytes() == 3U);
    link.acknowledged(0);
    BOOST_TEST(link.on_its_way(1));
    link.acknowledged(std::numeric_limits<std::uint64_t>::max());
    BOOST_TEST(link.sent().empty());
    BOOST_TEST(link.sent_bytes() == 0U);
    // Numbers go on; a later operation is acknowledged neither in advance nor by a lower number.
    BOOST_TEST(link.send(operation(), "").number == 2U);
    link.acknowledged(1);
    BOOST_TEST(link.on_its_way(2));
    link.resume(Time());
    BOOST_TEST((link.answered(answer(link.token(), 0, largest)) == Answer::resumed));
    BOOST_TEST(link.sent().empty());
    BOOST_TEST(link.send(operation(), "").number == 3U);
}

BOOST_AUTO_TEST_CASE(a_kernel_that_acknowledges_nothing_is_bounded) {
    auto link = linked();
    link.send(operation(), std::string(ReliableLink::send_window, 'x'));
    BOOST_TEST(!link.window_full());
    link.send(operation(), "x");
    BOOST_TEST(link.window_full());
    link.acknowledged(1);
    BOOST_TEST(!link.window_full());
    while (link.sent().size() < ReliableLink::send_window_count) link.send(operation(), "");
    BOOST_TEST(!link.window_full());
    link.send(operation(), "");
    BOOST_TEST(link.window_full());
    while (link.sent().size() < ReliableLink::most_sent) link.send(operation(), "");
    BOOST_TEST(!link.overfull());
    const auto number = link.send(operation(), "").number;
    BOOST_TEST(link.overfull());
    link.acknowledged(number);
    BOOST_TEST(!link.overfull());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace unit_kernel_link_tests
