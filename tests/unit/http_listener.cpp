#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/net/http_listener.hpp>
#include <list>
#include <string>

#include "test_support.hpp"

namespace http_listener_tests {

using namespace ipybox;
using namespace std::chrono_literals;
namespace {

using Tcp = asio::ip::tcp;

// Answers who says "good"; /slow is answered when `let` is set.
struct Service final : net::HttpService {
    explicit Service(asio::io_context& context) : changed(context.get_executor()) {}
    net::HttpReply check(net::HttpPeer&, const net::HttpServerRequest& head) override {
        net::HttpReply reply;
        if (head["Authorization"] != "good") reply.status = 401;
        return reply;
    }
    awaitable<bool> answer(net::HttpPeerPtr peer, net::HttpServerRequest request) override {
        ++begun;
        while (request.target() == "/slow" && !let) co_await changed.wait();
        net::HttpReply reply;
        reply.status = 200;
        reply.body = request.body();
        auto text = net::render(*peer, reply);
        const bool written = co_await peer->write(std::move(text));
        co_return written && peer->keep_alive;
    }
    net::HttpReply refusal(unsigned status, const std::string& why) override {
        net::HttpReply reply;
        reply.status = status;
        reply.body = why;
        return reply;
    }
    Event changed;
    bool let = false;
    int begun = 0;
};

std::string request(const std::string& body = "hi", const std::string& target = "/",
                    const std::string& word = "good") {
    return "POST " + target + " HTTP/1.1\r\nAuthorization: " + word +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct Fixture {
    Fixture() {
        limits.max_body = 1000;
        limits.max_strangers = 8;
        limits.crowded_timeout = 20ms;
    }
    ~Fixture() {
        listener->close();
        settle(50ms);
        BOOST_TEST(listener->connections() == 0u);
    }
    void start() {
        listener =
            std::make_shared<net::HttpListener>(context.get_executor(), "test", limits, Logger());
        Tcp::acceptor acceptor(context);
        net::listen_on_loopback(acceptor, "127.0.0.1", 0, "test");
        endpoint = acceptor.local_endpoint();
        listener->start(service, std::move(acceptor));
    }
    void settle(Duration time = 30ms) {
        context.restart();
        context.run_for(time);
    }
    Tcp::socket connect(const std::string& from = "127.0.0.1") {
        Tcp::socket socket(context, Tcp::v4());
        socket.bind({asio::ip::make_address(from), 0});
        socket.connect(endpoint);
        return socket;
    }
    void send(Tcp::socket& socket, const std::string& text) {
        asio::write(socket, asio::buffer(text));
    }
    // What comes within the time, or until the end.
    std::string receive(Tcp::socket& socket, Duration time = 20s) {
        return test::run(context, receive_from(socket, time));
    }
    static awaitable<std::string> receive_from(Tcp::socket& socket, Duration time) {
        std::string text;
        const auto limit = Clock::now() + time;
        auto reading = read(socket, text);
        auto timer = sleep_until(limit);
        const bool ended = co_await ends_first(std::move(reading), std::move(timer));
        co_return ended ? text : "nothing";
    }
    static awaitable<void> read(Tcp::socket& socket, std::string& text) {
        char chunk[1024];
        auto [error, size] = co_await socket.async_read_some(asio::buffer(chunk), as_result);
        text.assign(chunk, error ? 0 : size);
    }
    std::string ask(Tcp::socket& socket, const std::string& text) {
        send(socket, text);
        return receive(socket);
    }
    asio::io_context context{1};
    net::HttpLimits limits;
    std::shared_ptr<Service> service = std::make_shared<Service>(context);
    std::shared_ptr<net::HttpListener> listener;
    Tcp::endpoint endpoint;
};

// Where others want its place, a 408 may follow at once.
bool is_good(const std::string& answer) {
    return answer.starts_with("HTTP/1.1 200 ") && answer.find("\r\n\r\nhi") != answer.npos;
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(http_listener, Fixture)

BOOST_AUTO_TEST_CASE(requests_follow_each_other_on_a_connection) {
    start();
    auto client = connect();
    for (int i = 0; i < 3; ++i) BOOST_TEST(is_good(ask(client, request())));
    send(client, request().substr(0, 20));
    settle();
    BOOST_TEST(is_good(ask(client, request().substr(20))));
    BOOST_TEST(ask(client, request(std::string(1001, 'x'))).starts_with("HTTP/1.1 413 "));
    BOOST_TEST(receive(client) == "");
    auto other = connect();
    BOOST_TEST(ask(other, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    auto large = connect();
    BOOST_TEST(ask(large, "GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x'))
                   .starts_with("HTTP/1.1 431 "));
}

BOOST_AUTO_TEST_CASE(a_stranger_gets_no_further_than_its_head) {
    start();
    auto client = connect();
    BOOST_TEST(
        ask(client, request("", "/", "bad").substr(0, 60) + "Content-Length: 900\r\n\r\nand a part")
            .starts_with("HTTP/1.1 401 "));
    BOOST_TEST(receive(client) == "");
    BOOST_TEST(service->begun == 0);
    client.close();
    auto known = connect();
    BOOST_TEST(is_good(ask(known, request())));
    BOOST_TEST(listener->strangers() == 0u);
}

BOOST_AUTO_TEST_CASE(the_silent_and_the_slow_are_sent_away) {
    limits.stranger_timeout = 300ms;
    limits.request_timeout = 600ms;
    start();
    auto silent = connect(), half = connect(), slow = connect(), known = connect(),
         late = connect();
    BOOST_TEST(is_good(ask(known, request())));
    send(half, "POST / HTTP/1.1\r\nAuthori");
    // Who is known may take longer over its body, and not forever.
    send(late, request().substr(0, request().size() - 1));
    // One byte after the other buys no time.
    boost::system::error_code error;
    const auto text = request();
    for (std::size_t i = 0; i < text.size() && !error; ++i) {
        asio::write(slow, asio::buffer(&text[i], 1), error);
        settle(20ms);
    }
    BOOST_TEST(static_cast<bool>(error));
    for (auto* one : {&silent, &half, &late}) BOOST_TEST(receive(*one) == "");
    BOOST_TEST(service->begun == 1);
    BOOST_TEST(is_good(ask(known, request())));
}

BOOST_AUTO_TEST_CASE(strangers_crowd_out_strangers_only) {
    start();
    auto known = connect();
    BOOST_TEST(is_good(ask(known, request())));
    std::list<Tcp::socket> flood;
    for (int i = 0; i < 400; ++i) {
        flood.push_back(connect());
        if (i % 2 == 0) send(flood.back(), "GET / HTTP/1.1\r\nAuth");
    }
    auto client = connect();
    BOOST_TEST(is_good(ask(client, request())));
    BOOST_TEST(is_good(ask(known, request())));
    BOOST_TEST(listener->strangers() <= limits.max_strangers + 1);
}

// The contrast: without a bound on them the same strangers stay.
BOOST_AUTO_TEST_CASE(without_the_bound_they_would_stay) {
    limits.max_strangers = 1000;
    start();
    std::list<Tcp::socket> flood;
    for (int i = 0; i < 60; ++i) flood.push_back(connect());
    settle(300ms);
    BOOST_TEST(listener->strangers() == 60u);
}

BOOST_AUTO_TEST_CASE(a_crowd_from_one_address_makes_room_itself) {
    limits.crowded_timeout = 0ms;
    start();
    auto slow = connect("127.0.0.1");
    send(slow, request().substr(0, 30));
    settle();
    std::list<Tcp::socket> flood;
    for (int i = 0; i < 100; ++i) flood.push_back(connect("127.0.0.2"));
    settle();
    BOOST_TEST(is_good(ask(slow, request().substr(30))));
}

BOOST_AUTO_TEST_CASE(what_was_dropped_is_not_carried_out) {
    limits.max_strangers = 1;
    limits.crowded_timeout = 0ms;
    limits.max_connections = 3;
    start();
    std::list<Tcp::socket> clients;
    for (int i = 0; i < 200; ++i) {
        clients.push_back(connect());
        send(clients.back(), request().substr(0, i % 3 == 0 ? 20 : std::string::npos));
    }
    int answered = 0;
    for (auto& one : clients) answered += is_good(receive(one)) ? 1 : 0;
    BOOST_TEST(answered == service->begun);
    auto client = connect();
    BOOST_TEST(is_good(ask(client, request())));
}

BOOST_AUTO_TEST_CASE(the_longest_idle_makes_room_and_never_one_that_is_served) {
    limits.max_connections = 4;
    start();
    std::list<Tcp::socket> clients;
    for (int i = 0; i < 4; ++i) {
        clients.push_back(connect());
        BOOST_TEST(is_good(ask(clients.back(), request())));
    }
    // The first is the last to have been used.
    BOOST_TEST(is_good(ask(clients.front(), request())));
    auto fifth = connect();
    BOOST_TEST(is_good(ask(fifth, request())));
    // Which is told, so that it can ask again.
    auto& idle = *std::next(clients.begin());
    BOOST_TEST(receive(idle).starts_with("HTTP/1.1 408 "));
    BOOST_TEST(receive(idle) == "");
    BOOST_TEST(is_good(ask(clients.front(), request())));
    BOOST_TEST(is_good(ask(clients.back(), request())));

    // With a request on each, whoever comes waits, and nothing is lost.
    clients.clear();
    fifth.close();
    settle();
    for (int i = 0; i < 12; ++i) {
        clients.push_back(connect());
        send(clients.back(), request("hi", "/slow"));
    }
    settle(200ms);
    BOOST_TEST(service->begun == 12);  // eight before, and as many as there are places
    service->let = true;
    service->changed.notify();
    for (auto& one : clients) BOOST_TEST(is_good(receive(one)));
}

BOOST_AUTO_TEST_CASE(no_descriptors_are_a_pause_and_not_the_end) {
    start();
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    std::list<Tcp::socket> flood;
    for (int i = 0; i < 20; ++i) flood.push_back(connect());
    auto client = connect();
    send(client, request());
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(client.native_handle()) + 3;
    ::setrlimit(RLIMIT_NOFILE, &none);
    settle(200ms);
    ::setrlimit(RLIMIT_NOFILE, &before);
    BOOST_TEST(is_good(receive(client)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace http_listener_tests
