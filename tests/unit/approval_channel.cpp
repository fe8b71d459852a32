#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/approval/channel.hpp>
#include <list>
#include <set>

#include "test_support.hpp"

namespace approval_channel_tests {

using namespace ipybox;
using namespace std::chrono_literals;

namespace {
ToolCall echo_call(std::string text) {
    ToolCall call;
    call.server = "own";
    call.tool = "echo";
    call.arguments["text"] = std::move(text);
    return call;
}

struct ChannelFixture {
    ChannelFixture() {
        options.approval_required = true;
        options.approval_timeout = 20s;
    }
    void open() {
        channel = std::make_unique<ApprovalChannel>(context.get_executor(), options);
        const auto url = channel->listen("localhost", 0);
        port = static_cast<unsigned short>(
            std::stoi(url.substr(std::string("ws://127.0.0.1:").size())));
    }
    std::unique_ptr<ApprovalClient> connect(ApprovalClient::Callback callback) {
        ApprovalClientOptions settings;
        settings.port = port;
        settings.token = channel->token();
        auto client =
            std::make_unique<ApprovalClient>(context.get_executor(), std::move(callback), settings);
        test::run(context, client->connect());
        return client;
    }
    Decision ask(std::string text = "x") {
        return test::run(context, channel->ask(echo_call(std::move(text))));
    }
    // What is left to do, without waiting for more.
    void settle() {
        asio::steady_timer pause(context, 30ms);
        test::run(context, pause.async_wait(asio::use_awaitable));
    }
    // The answer to a request written by hand.
    std::string raw(std::string request) {
        asio::ip::tcp::socket socket(context);
        socket.connect({asio::ip::address_v4::loopback(), port});
        asio::write(socket, asio::buffer(request));
        return test::run(context, first_line(socket));
    }
    static awaitable<std::string> first_line(asio::ip::tcp::socket& socket) {
        std::string text;
        char byte = 0;
        while (text.find("\r\n") == text.npos) {
            auto [error, size] = co_await socket.async_read_some(asio::buffer(&byte, 1), as_result);
            if (error) break;
            text.append(&byte, size);
        }
        co_return text;
    }
    static std::string upgrade(const std::string& authorization,
                               const std::string& target = "/approval") {
        return "GET " + target +
               " HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
               authorization + "\r\n";
    }

    asio::io_context context;
    ApprovalChannelOptions options;
    std::unique_ptr<ApprovalChannel> channel;
    unsigned short port = 0;
};

ApprovalClient::Callback accept_all() {
    return [](ApprovalClient::Request request) -> awaitable<void> {
        request.accept();
        co_return;
    };
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(approval_channel, ChannelFixture)

BOOST_AUTO_TEST_CASE(yes_no_and_a_reason) {
    open();
    BOOST_TEST(!channel->open());
    const auto client = connect([](ApprovalClient::Request request) -> awaitable<void> {
        if (request.to_string() == "own.echo(text='yes')")
            request.accept();
        else
            request.reject("not \x1b[2J today");
        request.accept();  // the first answer counts
        co_return;
    });
    BOOST_TEST(channel->open());
    const auto yes = ask("yes");
    BOOST_TEST((yes.verdict == Verdict::allow));
    BOOST_TEST(yes.by == "approval channel");
    const auto no = ask("no");
    BOOST_TEST((no.verdict == Verdict::deny));
    BOOST_TEST(no.reason == "not \\x1b[2J today");
    json::object arguments;
    arguments["text"] = "yes";
    BOOST_TEST(test::run(context, channel->request("own", "echo", arguments)));
    arguments["text"] = "no";
    BOOST_TEST(!test::run(context, channel->request("own", "echo", arguments)));
}

BOOST_AUTO_TEST_CASE(the_original_defaults_and_errors) {
    const ApprovalChannelOptions defaults;
    BOOST_TEST(!defaults.approval_required);
    BOOST_TEST((defaults.approval_timeout == Duration::zero()));
    const ApprovalClientOptions client_defaults;
    BOOST_TEST(client_defaults.host == "localhost");
    BOOST_TEST(client_defaults.port == 8900);
    ApprovalChannel open_to_all(context.get_executor());
    BOOST_TEST(test::run(context, open_to_all.request("s", "t", {})));
    options.approval_timeout = 50ms;
    open();
    const auto fails = [&](errc code, std::string_view words) {
        BOOST_CHECK_EXCEPTION(
            test::run(context, channel->request("s", "t", {})), Error, [&](const Error& error) {
                return error.code() == code && error.detail().find(words) != std::string::npos;
            });
    };
    fails(errc::denied, "Approval channel not connected");
    auto client = connect(
        [](ApprovalClient::Request request) -> awaitable<void> { co_await request.settled(); });
    fails(errc::timed_out, "no approver answered in time");
    const auto late = ask();
    BOOST_TEST(late.expired);
    BOOST_TEST((late.verdict == Verdict::deny));
}

BOOST_AUTO_TEST_CASE(nobody_connected_passes_and_leaving_denies_what_is_pending) {
    open();
    BOOST_TEST((ask().verdict == Verdict::pass));
    ApprovalClient* leaving = nullptr;
    auto client = connect(
        [&](ApprovalClient::Request) -> awaitable<void> { co_await leaving->disconnect(); });
    leaving = client.get();
    const auto left = ask();
    BOOST_TEST((left.verdict == Verdict::deny));
    BOOST_TEST(left.reason == "the approver disconnected before it answered");
    BOOST_TEST(!client->connected());
    settle();
    BOOST_TEST((ask().verdict == Verdict::pass));
}

BOOST_AUTO_TEST_CASE(several_approvers_the_first_answer_counts_and_the_others_are_told) {
    open();
    int told = 0;
    auto slow = connect([&](ApprovalClient::Request request) -> awaitable<void> {
        co_await request.settled();
        ++told;
        request.reject();
    });
    auto quick = connect(accept_all());
    BOOST_TEST((ask().verdict == Verdict::allow));
    settle();
    BOOST_TEST(told == 1);
    quick = nullptr;  // the other is asked alone
    settle();
    BOOST_TEST(channel->open());
    slow = nullptr;
    settle();
    BOOST_TEST(!channel->open());
}

BOOST_AUTO_TEST_CASE(a_late_approver_answers_what_is_pending) {
    open();
    auto silent = connect(
        [](ApprovalClient::Request request) -> awaitable<void> { co_await request.settled(); });
    std::optional<Decision> decision;
    asio::co_spawn(context, channel->ask(echo_call("x")),
                   [&](std::exception_ptr, Decision made) { decision = made; });
    settle();
    BOOST_TEST(!decision.has_value());
    auto helper = connect(accept_all());
    settle();
    BOOST_TEST_REQUIRE(decision.has_value());
    BOOST_TEST((decision->verdict == Verdict::allow));
}

BOOST_AUTO_TEST_CASE(a_hundred_pending_answered_in_any_order_each_to_its_caller) {
    open();
    std::vector<ApprovalClient::Request> waiting;
    auto client = connect([&](ApprovalClient::Request request) -> awaitable<void> {
        waiting.push_back(request);
        co_return;
    });
    std::map<int, Decision> decisions;
    for (int i = 0; i < 100; ++i)
        asio::co_spawn(
            context, channel->ask(echo_call(std::to_string(i))),
            [&decisions, i](std::exception_ptr, Decision made) { decisions[i] = std::move(made); });
    for (int i = 0; i < 100 && waiting.size() < 100; ++i) settle();
    BOOST_TEST_REQUIRE(waiting.size() == 100u);
    for (int i = 0; i < 100; ++i) {
        const auto& request = waiting[static_cast<std::size_t>(i * 37 % 100)];
        const std::string text(request.tool_args().at("text").as_string());
        if (text.back() == '3')
            request.reject("no " + text);
        else
            request.accept();
    }
    for (int i = 0; i < 100 && decisions.size() < 100; ++i) settle();
    BOOST_TEST_REQUIRE(decisions.size() == 100u);
    for (const auto& [i, decision] : decisions) {
        BOOST_TEST((decision.verdict == (i % 10 == 3 ? Verdict::deny : Verdict::allow)));
        BOOST_TEST(decision.reason == (i % 10 == 3 ? "no " + std::to_string(i) : ""));
    }
}

BOOST_AUTO_TEST_CASE(only_this_machine_only_with_the_token) {
    open();
    BOOST_TEST(channel->token().size() == 64u);
    ApprovalChannel other(context.get_executor(), options);
    for (const char* host : {"0.0.0.0", "::", "192.168.0.1", "example.com", ""})
        BOOST_CHECK_EXCEPTION(other.listen(host, 0), Error, [](const Error& error) {
            return error.code() == errc::bad_argument;
        });
    BOOST_CHECK_EXCEPTION(other.listen("127.0.0.1", port), Error,
                          [](const Error& error) { return error.code() == errc::io_error; });
    options.token = "short";
    BOOST_CHECK_THROW(ApprovalChannel(context.get_executor(), options), Error);

    const std::string good = channel->token(), bad(64, '0');
    BOOST_TEST(raw(upgrade("")) == "HTTP/1.1 401 Unauthorized\r\n");
    BOOST_TEST(raw(upgrade("Authorization: Bearer " + bad + "\r\n")).starts_with("HTTP/1.1 401"));
    BOOST_TEST(raw(upgrade("Authorization: Bearer " + good.substr(1) + "\r\n"))
                   .starts_with("HTTP/1.1 401"));
    BOOST_TEST(raw(upgrade("Authorization: Basic !!\r\n")).starts_with("HTTP/1.1 401"));
    BOOST_TEST(
        raw(upgrade("Authorization: Bearer " + good + "\r\n", "/run")).starts_with("HTTP/1.1 404"));
    BOOST_TEST(raw("GET /approval HTTP/1.1\r\nAuthorization: Bearer " + good + "\r\n\r\n")
                   .starts_with("HTTP/1.1 400"));
    BOOST_TEST(raw("garbage\r\n\r\n") == "");
    BOOST_TEST(!channel->open());
    BOOST_TEST(raw(upgrade("Authorization: Bearer " + good + "\r\n")).starts_with("HTTP/1.1 101"));
    // As clients do that put the token into the address: ws://any:TOKEN@localhost/approval.
    BOOST_TEST(raw(upgrade("Authorization: Basic " + detail::encode_base64("any:" + good) + "\r\n"))
                   .starts_with("HTTP/1.1 101"));

    ApprovalClientOptions settings;
    settings.port = port;
    settings.token = bad;
    ApprovalClient intruder(context.get_executor(), accept_all(), settings);
    BOOST_CHECK_EXCEPTION(test::run(context, intruder.connect()), Error,
                          [](const Error& error) { return error.code() == errc::denied; });
    settings.port = 1;
    ApprovalClient lost(context.get_executor(), accept_all(), settings);
    BOOST_CHECK_EXCEPTION(test::run(context, lost.connect()), Error,
                          [](const Error& error) { return error.code() == errc::io_error; });
}

// A browser that was given the token once sends it for every page that connects.
BOOST_AUTO_TEST_CASE(web_pages_connect_only_when_they_are_named) {
    options.allowed_origins = {"http://localhost:3000"};
    open();
    const std::string token = "Authorization: Bearer " + channel->token() + "\r\n";
    const auto page = [&](const std::string& origin) {
        return raw(upgrade(token + "Origin: " + origin + "\r\n"));
    };
    for (const std::string bad : {"https://evil.example", "null", "", "http://localhost",
                                  "http://127.0.0.1:3001", "https://localhost:3000"})
        BOOST_TEST(page(bad).starts_with("HTTP/1.1 403"), bad);
    for (const std::string& good :
         {std::string("http://localhost:3000"), "http://127.0.0.1:" + std::to_string(port)})
        BOOST_TEST(page(good).starts_with("HTTP/1.1 101"), good);
}

BOOST_AUTO_TEST_CASE(strangers_keep_no_approver_out) {
    open();
    const auto before = connect(accept_all());
    std::list<asio::ip::tcp::socket> strangers;
    for (int i = 0; i < 500; ++i) {
        strangers.emplace_back(context).connect({asio::ip::address_v4::loopback(), port});
        if (i % 2 == 0)
            asio::write(strangers.back(), asio::buffer("GET /approval HTTP/1.1\r\nAuth", 28));
    }
    const auto client = connect(accept_all());
    BOOST_TEST(client->connected());
    BOOST_TEST(before->connected());
    BOOST_TEST((ask().verdict == Verdict::allow));
}

// The messages on the wire, and answers that are none.
BOOST_AUTO_TEST_CASE(messages_are_those_of_the_original) {
    open();
    namespace websocket = boost::beast::websocket;
    websocket::stream<asio::ip::tcp::socket> peer(context);
    peer.next_layer().connect({asio::ip::address_v4::loopback(), port});
    const std::string token = channel->token();
    peer.set_option(websocket::stream_base::decorator([&](websocket::request_type& request) {
        request.set(boost::beast::http::field::authorization, "Bearer " + token);
    }));
    test::run(context, peer.async_handshake("localhost", "/approval", asio::use_awaitable));
    settle();
    std::optional<Decision> decision;
    asio::co_spawn(context, channel->ask(echo_call("x")),
                   [&](std::exception_ptr, Decision made) { decision = made; });
    boost::beast::flat_buffer buffer;
    test::run(context, peer.async_read(buffer, asio::use_awaitable));
    const std::string text(static_cast<const char*>(buffer.data().data()), buffer.size());
    const auto message = json::parse(text).as_object();
    BOOST_TEST(message.size() == 4u);
    BOOST_TEST(message.at("jsonrpc").as_string() == "2.0");
    BOOST_TEST(message.at("method").as_string() == "approve");
    BOOST_TEST(json::serialize(message.at("params")) ==
               R"({"server_name":"own","tool_name":"echo","tool_args":{"text":"x"}})");
    const std::string id(message.at("id").as_string());
    const auto say = [&](const std::string& answer) {
        test::run(context, peer.async_write(asio::buffer(answer), asio::use_awaitable));
        settle();
    };
    for (const char* nonsense : {"nonsense", "[1]", "{}", R"({"id": 5, "result": true})",
                                 R"({"id": "0", "result": true})"})
        say(nonsense);
    BOOST_TEST(!decision.has_value());
    say(R"({"jsonrpc": "2.0", "result": "true", "id": ")" + id + "\"}");
    BOOST_TEST_REQUIRE(decision.has_value());
    BOOST_TEST((decision->verdict == Verdict::deny));  // only true is a yes
    say(R"({"jsonrpc": "2.0", "result": true, "id": ")" + id + "\"}");
    BOOST_TEST((decision->verdict == Verdict::deny));

    ToolCall large = echo_call(std::string(2'000'000, 'x'));
    const auto refused = test::run(context, channel->ask(large));
    BOOST_TEST((refused.verdict == Verdict::deny));
    BOOST_TEST(refused.reason.find("too large") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_end_of_a_channel_and_of_a_client_leave_nothing_behind) {
    open();
    auto client = connect(
        [](ApprovalClient::Request request) -> awaitable<void> { co_await request.settled(); });
    std::optional<Decision> decision;
    asio::co_spawn(context, channel->ask(echo_call("x")),
                   [&](std::exception_ptr, Decision made) { decision = made; });
    settle();
    channel = nullptr;
    settle();
    BOOST_TEST_REQUIRE(decision.has_value());
    BOOST_TEST((decision->verdict == Verdict::deny));
    BOOST_TEST(!client->connected());
    client = nullptr;
    settle();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace approval_channel_tests
