// The HTTP client against a server that keeps to the rules, and one that breaks each.
#include <stdlib.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/net/http_client.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http_server.hpp"
#include "test_support.hpp"

namespace http_client_tests {

using namespace ipybox;
using namespace std::chrono_literals;
using test::HttpMessage;
using test::HttpPeerPtr;

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Takes an environment variable's place for as long as it lives.
class Variable {
public:
    Variable(const char* name, const std::string& value) : name_(name) {
        if (const char* old = ::getenv(name)) old_ = old;
        ::setenv(name, value.c_str(), 1);
    }
    ~Variable() {
        if (old_) {
            ::setenv(name_, old_->c_str(), 1);
        } else {
            ::unsetenv(name_);
        }
    }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

private:
    const char* name_;
    std::optional<std::string> old_;
};

struct Answer {
    unsigned status = 0;
    HttpHeaders headers;
    std::string body;
    std::string url;
};

awaitable<Answer> fetch(HttpClient& client, HttpRequest request, std::size_t limit) {
    const auto response = co_await client.send(std::move(request));
    Answer answer;
    answer.status = response->status();
    answer.headers = response->headers();
    answer.url = response->url().text();
    answer.body = co_await response->read_all(limit, Clock::now() + 20s);
    co_return answer;
}

struct Fixture {
    Fixture() { options.proxies_from_environment = false; }
    ~Fixture() {
        client.reset();
        server.reset();
        context.restart();
        context.poll();
    }

    test::HttpServer& serve(test::HttpHandler handler, asio::ssl::context* tls = nullptr) {
        server.emplace(context, std::move(handler), tls);
        return *server;
    }
    // Writes this and hangs up.
    void serve_raw(std::string text) {
        serve([text = std::move(text)](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
            peer->keep = false;
            co_await peer->write(text);
        });
    }
    HttpClient& http() {
        if (!client) client.emplace(context.get_executor(), options);
        return *client;
    }
    static HttpRequest request(std::string method, std::string url, std::string body = {}) {
        HttpRequest made;
        made.method = std::move(method);
        made.url = std::move(url);
        made.body = std::move(body);
        made.deadline = Clock::now() + 20s;
        return made;
    }
    Answer send(HttpRequest wanted, std::size_t limit = 1 << 20) {
        return test::run(context, fetch(http(), std::move(wanted), limit));
    }
    Answer get(const std::string& url) { return send(request("GET", url)); }
    Error failure(HttpRequest wanted, std::size_t limit = 1 << 20) {
        try {
            send(std::move(wanted), limit);
        } catch (const Error& error) {
            return error;
        }
        throw std::runtime_error("nothing was thrown");
    }
    Error failure(const std::string& url) { return failure(request("GET", url)); }

    test::TemporaryDirectory directory;
    asio::io_context context;
    HttpClientOptions options;
    std::optional<test::HttpServer> server;
    std::optional<HttpClient> client;
};

awaitable<void> ok(HttpMessage message, HttpPeerPtr peer) {
    co_await peer->respond(200, "", message.method + " " + message.target + " " + message.body);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(http_client, Fixture)

BOOST_AUTO_TEST_CASE(addresses_are_checked_and_shown_without_secrets) {
    const auto url = HttpUrl::parse("HTTPS://user:p%40ss@Example.COM:8443/a/b%20c?q=1#f");
    BOOST_TEST(url.tls);
    BOOST_TEST(url.host == "example.com");
    BOOST_TEST(url.port == 8443);
    BOOST_TEST(url.credentials == "user:p@ss");
    BOOST_TEST(url.text() == "https://example.com:8443/a/b%20c?q=1");
    BOOST_TEST(url.printable() == "https://example.com:8443/a/b%20c");
    BOOST_TEST(HttpUrl::parse("http://[::1]:80?x").text() == "http://[::1]/?x");
    BOOST_TEST(HttpUrl::parse("ws://h").port == 80);
    BOOST_TEST(url.resolve("/x").text() == "https://example.com:8443/x");
    BOOST_TEST(url.resolve("?z").text() == "https://example.com:8443/a/b%20c?z");
    BOOST_TEST(url.resolve("//other/y").origin() == "https://other");
    for (const std::string bad :
         {"", "x", "/path", "ftp://secret:secret@h/", "http://", "http://:80/",
          "http://secret:secret@/", "http://h:99999/?secret", "http://h:0/", "http://h h/",
          "http://h/\n?secret", "http://%00/#secret", "http://a%2fb/", "http:h",
          "https://secret@h:x/"}) {
        BOOST_TEST_CONTEXT(bad)
        BOOST_CHECK_EXCEPTION(HttpUrl::parse(bad), Error, [](const Error& error) {
            return error.code() == errc::bad_argument && !contains(error.what(), "secret");
        });
    }
}

BOOST_AUTO_TEST_CASE(a_connection_serves_one_request_after_the_other) {
    serve([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.target == "/chunks") {
            co_await peer->begin_chunks("");
            for (const char* piece : {"a", "bc", ""}) co_await peer->chunk(piece);
        } else if (message.target == "/close") {
            co_await peer->write("HTTP/1.1 200 OK\r\n\r\nuntil the end");
            peer->keep = false;
        } else if (message.method == "HEAD") {
            co_await peer->write("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n");
        } else if (message.target == "/empty") {
            co_await peer->respond(204, "", "");
        } else {
            co_await ok(std::move(message), peer);
        }
    });
    const auto origin = server->origin();
    BOOST_TEST(get(origin).body == "GET / ");
    BOOST_TEST(send(request("POST", origin + "/p?q", "body")).body == "POST /p?q body");
    BOOST_TEST(get(origin + "/chunks").body == "abc");
    BOOST_TEST(get(origin + "/empty").status == 204);
    BOOST_TEST(send(request("HEAD", origin + "/head")).body == "");
    BOOST_TEST(server->connections() == 1);
    BOOST_TEST(get(origin + "/close").body == "until the end");
    BOOST_TEST(get(origin).status == 200);
    BOOST_TEST(server->connections() == 2);
    BOOST_TEST(server->seen().front().header("Host") == origin.substr(7));
    BOOST_TEST(server->seen().front().header("Content-Length").empty());
    BOOST_TEST(server->seen().at(1).header("Content-Length") == "4");
}

BOOST_AUTO_TEST_CASE(a_kept_connection_that_died_is_replaced_only_where_that_is_harmless) {
    serve(ok);
    const auto origin = server->origin();
    get(origin);
    server->handle([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.connection == 1) {
            peer->keep = false;
            co_return;
        }
        co_await ok(std::move(message), peer);
    });
    BOOST_TEST(get(origin + "/again").body == "GET /again ");
    BOOST_TEST(server->connections() == 2);
    server->handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        peer->keep = false;
        co_return;
    });
    const auto error = failure(request("POST", origin + "/pay", "once"));
    BOOST_TEST((error.code() == errc::http_failed));
    BOOST_TEST(contains(error.what(), "(HTTP request failed)"));
    BOOST_TEST(contains(error.detail(), "closed the connection"));
    const auto translated = http_failure_as(errc::mcp_connection, error);
    BOOST_TEST((translated.code() == errc::mcp_connection));
    BOOST_TEST(translated.detail() == error.detail());
    const Error late(errc::timed_out, "x");
    BOOST_TEST((http_failure_as(errc::mcp_connection, late).code() == errc::timed_out));
    BOOST_TEST(server->seen().size() == 4u);
    // One retry, not more.
    server->handle(ok);
    get(origin);
    server->handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        peer->keep = false;
        co_return;
    });
    BOOST_TEST((failure(origin).code() == errc::http_failed));
    BOOST_TEST(server->seen().size() == 7u);
}

BOOST_AUTO_TEST_CASE(what_hung_up_while_idle_is_not_used) {
    serve([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        const bool last = message.body == "1";
        co_await ok(std::move(message), peer);
        if (last) peer->keep = false;
    });
    BOOST_TEST(send(request("POST", server->origin(), "1")).status == 200);
    test::run(context, sleep_until(Clock::now() + 20ms));
    BOOST_TEST(send(request("POST", server->origin(), "2")).status == 200);
    BOOST_TEST(server->connections() == 2);
    // A server that says it hangs up within a second is believed.
    server->handle([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->respond(200, "Keep-Alive: timeout=1\r\n", "");
    });
    get(server->origin());
    get(server->origin());
    BOOST_TEST(server->connections() == 3);
}

BOOST_AUTO_TEST_CASE(interim_answers_are_skipped_but_not_for_ever) {
    serve_raw(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 "
        "OK\r\nContent-Length: 2\r\n\r\nok");
    const auto answer = get(server->origin());
    BOOST_TEST(answer.body == "ok");
    BOOST_TEST(find_header(answer.headers, "link").empty());
    std::string endless;
    for (int i = 0; i < 100; ++i) endless += "HTTP/1.1 100 Continue\r\n\r\n";
    serve_raw(endless);
    BOOST_TEST(contains(failure(server->origin()).detail(), "without end"));
}

BOOST_AUTO_TEST_CASE(what_is_no_http_is_refused) {
    const std::string head = "HTTP/1.1 200 OK\r\n";
    for (const std::string& text : std::vector<std::string>{
             std::string("SSH-2.0-OpenSSH\r\n"), std::string("<html>\r\n\r\n"),
             std::string(4096, '\0'), std::string("HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n"),
             head + "Content-Length: 5\r\n\r\nabc", head + "Content-Length: -1\r\n\r\n",
             head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
             head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
             head + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
             head + "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
             head + "Transfer-Encoding: chunked\r\n\r\n2\r\nabX\r\n", head + "Na me: x\r\n\r\n",
             head, std::string()}) {
        serve_raw(text);
        BOOST_TEST((failure(server->origin() + "/?secret").code() == errc::http_failed),
                   text.substr(0, 80));
        BOOST_TEST(!contains(failure(server->origin() + "/?secret").detail(), "secret"));
    }
}

BOOST_AUTO_TEST_CASE(heads_and_bodies_have_limits) {
    serve([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        std::string text = "HTTP/1.1 200 OK\r\n";
        if (message.target == "/head") {
            for (;;) {
                co_await peer->write(text);
                text = "X: " + std::string(1000, 'x') + "\r\n";
            }
        }
        if (message.target == "/chunk") {
            co_await peer->begin_chunks("");
            text = "5;x=";
            for (;;) {
                co_await peer->write(text);
                text = std::string(1000, 'x');
            }
        }
        co_await peer->begin_chunks("");
        text = std::string(100'000, 'x');
        for (;;) co_await peer->chunk(text);
    });
    BOOST_TEST(contains(failure(server->origin() + "/head").detail(), "65536 bytes"));
    BOOST_TEST((failure(server->origin() + "/chunk").code() == errc::http_failed));
    BOOST_TEST(contains(failure(server->origin() + "/body").detail(), "more than 1048576 bytes"));
}

BOOST_AUTO_TEST_CASE(a_long_body_comes_in_pieces_and_waits_for_its_reader) {
    std::size_t sent = 0;
    constexpr std::size_t total = 64 << 20;
    serve([&sent](HttpMessage, HttpPeerPtr peer) -> awaitable<void> {
        co_await peer->write("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(total) +
                             "\r\n\r\n");
        for (; sent < total; sent += 1 << 16) co_await peer->write(std::string(1 << 16, 'x'));
    });
    const auto response = test::run(context, http().send(request("GET", server->origin())));
    test::run(context, sleep_until(Clock::now() + 200ms));
    BOOST_TEST(sent < total / 2);  // nobody read it
    std::size_t got = 0;
    for (std::string piece = "x"; !piece.empty();) {
        piece = test::run(context, response->read_some(Clock::now() + 20s));
        got += piece.size();
        BOOST_REQUIRE(piece.size() <= (1u << 17));
    }
    BOOST_TEST(got == total);
}

BOOST_AUTO_TEST_CASE(redirects_stay_within_the_origin) {
    test::HttpServer other(context, ok);
    serve([&](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        const auto to = [&](const std::string& where) { return "Location: " + where + "\r\n"; };
        if (message.target == "/307") {
            co_await peer->respond(307, to("/there?x"), "moved");
        } else if (message.target == "/303") {
            co_await peer->respond(303, to("there"), "");
        } else if (message.target == "/away") {
            co_await peer->respond(307, to(other.origin() + "/?secret"), "");
        } else if (message.target == "/loop") {
            co_await peer->respond(302, to("/loop"), "");
        } else {
            co_await ok(std::move(message), peer);
        }
    });
    const auto origin = server->origin();
    auto answer = send(request("POST", origin + "/307", "body"));
    BOOST_TEST(answer.body == "POST /there?x body");
    BOOST_TEST(answer.url == origin + "/there?x");
    BOOST_TEST(send(request("POST", origin + "/303", "body")).body == "GET /there ");
    const auto away = failure(origin + "/away").detail();
    BOOST_TEST(contains(away, origin + "/away"));
    BOOST_TEST(contains(away, other.origin()));
    BOOST_TEST(!contains(away, "secret"));
    BOOST_TEST(other.seen().empty());
    BOOST_TEST(contains(failure(origin + "/loop").detail(), "more than 3 times"));
    client.reset();
    options.max_redirects = 0;
    BOOST_TEST(get(origin + "/away").status == 307);
}

BOOST_AUTO_TEST_CASE(headers_are_checked_and_unique) {
    serve(ok);
    auto wanted = request("POST", "http://user:pass@" + server->origin().substr(7), "x");
    wanted.headers = {
        {"Content-Type", "text/plain"}, {"X-One", "1"}, {"content-type", "application/json"}};
    send(wanted);
    const auto& seen = server->seen().front();
    BOOST_TEST(seen.count("Content-Type") == 1u);
    BOOST_TEST(seen.header("Content-Type") == "application/json");
    BOOST_TEST(seen.header("Authorization") == "Basic dXNlcjpwYXNz");
    BOOST_TEST(seen.header("User-Agent").starts_with("ipybox/"));
    for (const auto& bad : HttpHeaders{{"Host", "secret"},
                                       {"content-length", "1"},
                                       {"a b", "secret"},
                                       {"", "x"},
                                       {"X", "secret\r\nY: z"},
                                       {"X", std::string("secret\0", 7)}}) {
        wanted.headers = {bad};
        const auto error = failure(wanted);
        BOOST_TEST((error.code() == errc::bad_argument));
        BOOST_TEST(!contains(error.what(), "secret"));
    }
    wanted.headers.clear();
    wanted.method = "GE T";
    BOOST_TEST((failure(wanted).code() == errc::bad_argument));
}

BOOST_AUTO_TEST_CASE(nothing_is_waited_for_beyond_its_deadline) {
    serve([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.target == "/body")
            co_await peer->write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
        co_await peer->wait_for_end();
    });
    auto wanted = request("GET", server->origin() + "/head");
    wanted.deadline = Clock::now() + 50ms;
    BOOST_TEST((failure(wanted).code() == errc::timed_out));
    const auto response =
        test::run(context, http().send(request("GET", server->origin() + "/body")));
    BOOST_TEST(test::run(context, response->read_some(Clock::now() + 20s)) == "ab");
    BOOST_CHECK_EXCEPTION(test::run(context, response->read_some(Clock::now() + 50ms)), Error,
                          [](const Error& error) { return error.code() == errc::timed_out; });
    // A server that does not answer TLS.
    client.reset();
    options.connect_timeout = 50ms;
    const auto error = failure("https://127.0.0.1:" + std::to_string(server->port()));
    BOOST_TEST((error.code() == errc::timed_out));
    BOOST_TEST(contains(error.detail(), "TLS"));
}

BOOST_AUTO_TEST_CASE(a_server_that_is_not_there_or_not_allowed_is_named) {
    std::string origin;
    {
        test::HttpServer gone(context, ok);
        origin = gone.origin();
    }
    const auto refused = failure(origin + "/x?secret");
    BOOST_TEST((refused.code() == errc::http_failed));
    BOOST_TEST(contains(refused.detail(), origin));
    BOOST_TEST(contains(refused.detail(), "is the server running"));
    BOOST_TEST(!contains(refused.detail(), "secret"));
    BOOST_TEST(contains(failure("http://no-such-host.invalid/").detail(), "no-such-host.invalid"));
    client.reset();
    serve(ok);
    options.may_connect = [](const asio::ip::address& address) { return !address.is_loopback(); };
    for (const char* host : {"127.0.0.1", "localhost"}) {
        const auto error =
            failure("http://" + std::string(host) + ":" + std::to_string(server->port()));
        BOOST_TEST(contains(error.detail(), "may not be connected to"));
    }
    BOOST_TEST(server->connections() == 0);
}

BOOST_AUTO_TEST_CASE(many_requests_at_once_each_get_their_own_answer) {
    serve([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        const auto wait =
            Clock::now() + std::chrono::milliseconds(std::hash<std::string>()(message.target) % 20);
        co_await sleep_until(wait);
        co_await ok(std::move(message), peer);
    });
    int right = 0, ended = 0;
    const auto one = [&](int i) -> awaitable<void> {
        for (int k = 0; k < 5; ++k) {
            const std::string target = "/" + std::to_string(i) + "/" + std::to_string(k);
            auto wanted = request("GET", server->origin() + target);
            const auto answer = co_await fetch(http(), std::move(wanted), 1000);
            right += answer.body == "GET " + target + " ";
        }
        ++ended;
    };
    for (int i = 0; i < 100; ++i) asio::co_spawn(context, one(i), asio::detached);
    const auto all = [&]() -> awaitable<void> {
        while (ended < 100) co_await sleep_until(Clock::now() + 5ms);
    };
    test::run(context, all());
    BOOST_TEST(right == 500);
    BOOST_TEST(server->connections() >= 100);
    // Only as many as asked for stay open.
    test::run(context, sleep_until(Clock::now() + 50ms));
    BOOST_TEST(server->open_connections() <= options.max_idle_connections);
}

BOOST_AUTO_TEST_CASE(cancelling_and_destroying_end_what_is_in_flight) {
    serve([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> { co_await peer->wait_for_end(); });
    const auto outcome = [&](auto end) {
        asio::cancellation_signal signal;
        boost::system::error_code code;
        bool finished = false;
        asio::co_spawn(
            context, http().send(request("GET", server->origin())),
            asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr failed, auto) {
                finished = true;
                try {
                    if (failed) std::rethrow_exception(failed);
                } catch (const boost::system::system_error& error) {
                    code = error.code();
                }
            }));
        const auto before = server->seen().size();
        const auto ended = [&]() -> awaitable<void> {
            while (server->seen().size() == before) co_await sleep_until(Clock::now() + 1ms);
            end(signal);
            while (!finished) co_await sleep_until(Clock::now() + 1ms);
        };
        test::run(context, ended());
        return code;
    };
    BOOST_TEST(outcome([](auto& signal) { signal.emit(asio::cancellation_type::terminal); }) ==
               asio::error::operation_aborted);
    BOOST_TEST(outcome([&](auto&) { client.reset(); }) == asio::error::operation_aborted);
}

BOOST_AUTO_TEST_CASE(a_refusal_counts_although_the_body_was_not_read) {
    serve([](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        co_await ok(std::move(message), peer);
    });
    asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    const auto refuse = [&]() -> awaitable<void> {
        auto socket = co_await acceptor.async_accept(asio::use_awaitable);
        const std::string text =
            "HTTP/1.1 413 X\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge";
        const auto buffer = asio::buffer(text);
        co_await asio::async_write(socket, buffer, asio::use_awaitable);
        socket.shutdown(asio::ip::tcp::socket::shutdown_send);
        std::string sink(1 << 16, '\0');
        const auto room = asio::buffer(sink);
        for (bool more = true; more;) {
            const auto [error, size] = co_await socket.async_read_some(room, as_result);
            more = !error;
        }
    };
    asio::co_spawn(context, refuse(), asio::detached);
    const std::string url = "http://127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
    const auto answer = send(request("POST", url, std::string(8 << 20, 'x')));
    BOOST_TEST(answer.status == 413);
    BOOST_TEST(answer.body == "large");
}

BOOST_AUTO_TEST_CASE(tls_is_verified) {
    asio::ssl::context good(asio::ssl::context::tls_server), old(asio::ssl::context::tls_server);
    test::make_certificate(good, directory.path() / "good.pem", "DNS:localhost");
    test::make_certificate(old, directory.path() / "old.pem", "DNS:localhost", -2, -1);
    serve(ok, &good);
    const std::string port = std::to_string(server->port());
    const auto unknown = failure("https://localhost:" + port + "/?secret");
    BOOST_TEST((unknown.code() == errc::http_failed));
    BOOST_TEST(contains(unknown.detail(), "https://localhost:" + port));
    BOOST_TEST(contains(unknown.detail(), "SSL_CERT_FILE"));
    BOOST_TEST(!contains(unknown.detail(), "secret"));
    client.reset();
    options.ca_file = (directory.path() / "good.pem").string();
    BOOST_TEST(get("https://localhost:" + port + "/tls").body == "GET /tls ");
    BOOST_TEST(get("https://localhost:" + port + "/tls").status == 200);
    BOOST_TEST(
        send(request("POST", "https://localhost:" + port, std::string(300'000, 'x'))).body.size() >
        300'000u);
    BOOST_TEST(server->seen().front().connection == server->seen().back().connection);
    const auto misnamed = failure("https://127.0.0.1:" + port);
    BOOST_TEST(contains(misnamed.detail(), "the name that the certificate was made for"));

    serve(ok, &old);
    client.reset();
    options.ca_file = (directory.path() / "old.pem").string();
    BOOST_TEST(contains(failure("https://localhost:" + std::to_string(server->port())).detail(),
                        "expired"));
    // One that speaks without TLS.
    asio::ip::tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    const auto answer = [&]() -> awaitable<void> {
        auto socket = co_await acceptor.async_accept(asio::use_awaitable);
        const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
        const auto buffer = asio::buffer(text);
        co_await asio::async_write(socket, buffer, asio::use_awaitable);
    };
    asio::co_spawn(context, answer(), asio::detached);
    const auto plain = "https://127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
    BOOST_TEST(contains(failure(plain).detail(), "does not speak TLS"));
    client.reset();
    options.ca_file = "/no/such.pem";
    BOOST_TEST(contains(failure("https://localhost:1").detail(), "localhost:1"));
    BOOST_TEST((failure("https://localhost:" + std::to_string(server->port())).code() ==
                errc::bad_argument));
}

BOOST_AUTO_TEST_CASE(authorities_of_the_environment_are_trusted) {
    asio::ssl::context good(asio::ssl::context::tls_server);
    const auto certificate = directory.path() / "good.pem";
    test::make_certificate(good, certificate, "DNS:localhost");
    serve(ok, &good);
    const std::string url = "https://localhost:" + std::to_string(server->port()) + "/tls";
    {
        const Variable file("SSL_CERT_FILE", certificate.string());
        BOOST_TEST(get(url).body == "GET /tls ");
    }
    client.reset();
    {
        // Nothing else is trusted in its place, and nothing is silently left out.
        const Variable file("SSL_CERT_FILE", "/no/such.pem");
        const auto refused = failure(url);
        BOOST_TEST((refused.code() == errc::bad_argument));
        BOOST_TEST(contains(refused.detail(), "/no/such.pem"));
        BOOST_TEST(contains(refused.detail(), "SSL_CERT_FILE"));
    }
    client.reset();
    {
        const Variable empty("SSL_CERT_DIR", directory.path().string());
        BOOST_TEST(contains(failure(url).detail(), "is not accepted"));
    }
    client.reset();
    BOOST_TEST(contains(failure(url).detail(), "is not accepted"));
}

BOOST_AUTO_TEST_CASE(proxies_of_the_environment_are_used) {
    asio::ssl::context tls(asio::ssl::context::tls_server);
    test::make_certificate(tls, directory.path() / "ca.pem", "DNS:secure.test");
    serve([&](HttpMessage message, HttpPeerPtr peer) -> awaitable<void> {
        if (message.method == "CONNECT" && message.target == "refused.test:443") {
            co_await peer->respond(407, "", "no");
        } else if (message.method == "CONNECT") {
            co_await peer->write("HTTP/1.1 200 Connection established\r\n\r\n");
            if (message.target != "plain.test:80") co_await peer->start_tls(tls);
        } else {
            co_await ok(std::move(message), peer);
        }
    });
    options.proxies_from_environment = true;
    options.ca_file = (directory.path() / "ca.pem").string();
    const std::string proxy = "http://user:hidden@" + server->origin().substr(7);
    const Variable http_proxy("http_proxy", proxy), https_proxy("https_proxy", proxy),
        none("no_proxy", "other.test");
    BOOST_TEST(get("http://plain.test/x?y").body == "GET http://plain.test/x?y ");
    BOOST_TEST(server->seen().back().header("Host") == "plain.test");
    BOOST_TEST(server->seen().back().header("Proxy-Authorization") == "Basic dXNlcjpoaWRkZW4=");
    BOOST_TEST(get("https://secure.test/x").body == "GET /x ");
    BOOST_TEST(server->seen().back().header("Proxy-Authorization").empty());
    const auto refused = failure("https://refused.test/x?secret");
    BOOST_TEST(contains(refused.detail(), "proxy 127.0.0.1"));
    BOOST_TEST(contains(refused.detail(), "407"));
    BOOST_TEST(!contains(refused.detail(), "hidden"));
    const auto stream = test::run(context, http().connect("ws://plain.test/", Clock::now() + 20s));
    BOOST_TEST(server->seen().back().target == "plain.test:80");
    const Variable socks("http_proxy", "socks5://secret@127.0.0.1:1");
    BOOST_TEST(contains(failure("http://plain.test/").detail(), "http_proxy"));
    BOOST_TEST(!contains(failure("http://plain.test/").detail(), "secret"));
    // Loopback needs none, and neither do the names of NO_PROXY.
    test::HttpServer direct(context, ok);
    BOOST_TEST(get(direct.origin()).body == "GET / ");
    BOOST_TEST(!contains(failure("http://other.test/").detail(), "proxy"));
}

BOOST_AUTO_TEST_CASE(a_proxy_is_asked_for_no_name_that_may_not_be_connected_to) {
    serve(ok);
    options.proxies_from_environment = true;
    const Variable http_proxy("http_proxy", server->origin()), none("no_proxy", "");
    const std::string here = boost::asio::ip::host_name();
    BOOST_TEST(get("http://corp.internal/").body == "GET http://corp.internal/ ");  // nobody judges
    client.reset();
    options.may_name = [](const std::string& host) {
        return net::classify_name(host) == net::AddressKind::public_;
    };
    for (const char* host : {"corp.internal", "printer", "127.1", "0x7f000001", "localhost.",
                             "kubernetes.default.svc"})
        BOOST_TEST(contains(failure("http://" + std::string(host) + "/").detail(),
                            "may not be connected to"),
                   host);
    BOOST_TEST(get("http://www.example.net/").body == "GET http://www.example.net/ ");
    client.reset();
    options.may_name = nullptr;
    options.may_connect = [](const asio::ip::address&) { return false; };
    // What is known of a name counts; an unknown one is the proxy's to find.
    BOOST_TEST(contains(failure("http://" + here + "/").detail(), "may not be connected to"));
    BOOST_TEST(get("http://no-such-host.invalid/").body == "GET http://no-such-host.invalid/ ");
    BOOST_TEST(server->seen().size() == 3u);
}

BOOST_AUTO_TEST_CASE(no_proxy_lists_are_understood) {
    const auto bypasses = [](std::string_view list, const char* host, std::uint16_t port = 80) {
        return net::bypasses_proxy(list, host, port);
    };
    BOOST_TEST(bypasses("*", "a.b"));
    BOOST_TEST(bypasses("x, A.b ,y", "a.b"));
    BOOST_TEST(bypasses("b.c", "a.b.c"));
    BOOST_TEST(!bypasses("b.c", "ab.c"));
    BOOST_TEST(bypasses(".b.c", "a.b.c"));
    BOOST_TEST(!bypasses(".b.c", "b.c"));
    BOOST_TEST(bypasses("*.b.c", "a.b.c"));
    BOOST_TEST(bypasses("b.c:8080", "b.c", 8080));
    BOOST_TEST(!bypasses("b.c:8080", "b.c", 80));
    BOOST_TEST(bypasses("10.0.0.0/8", "10.1.2.3"));
    BOOST_TEST(!bypasses("10.0.0.0/8", "11.1.2.3"));
    BOOST_TEST(bypasses("192.0.2.1:80", "192.0.2.1"));
    BOOST_TEST(bypasses("fd00::/8", "fd12::1"));
    BOOST_TEST(bypasses("[fd00::1]:80", "fd00::1"));
    BOOST_TEST(!bypasses("[fd00::1]:81", "fd00::1"));
    BOOST_TEST(!bypasses("fd00::/8,10.0.0.0/99,[,:,", "192.0.2.1"));
    BOOST_TEST(!bypasses("", "a.b"));
    for (const char* loopback : {"localhost", "x.localhost", "127.0.0.2", "::1"})
        BOOST_TEST(bypasses("", loopback));
}

BOOST_AUTO_TEST_CASE(a_connected_stream_carries_anything) {
    asio::ssl::context tls(asio::ssl::context::tls_server);
    test::make_certificate(tls, directory.path() / "ca.pem", "DNS:localhost");
    serve([](HttpMessage, HttpPeerPtr peer) -> awaitable<void> { co_await peer->write("pong"); },
          &tls);
    options.ca_file = (directory.path() / "ca.pem").string();
    const auto stream = test::run(
        context, http().connect("wss://localhost:" + std::to_string(server->port()) + "/socket",
                                Clock::now() + 20s));
    client.reset();  // it lives on
    const auto talk = [&]() -> awaitable<std::string> {
        const std::string question = "GET / HTTP/1.1\r\n\r\n";
        const auto buffer = asio::buffer(question);
        co_await asio::async_write(*stream, buffer, as_result);
        std::string answer(4, '\0');
        const auto room = asio::buffer(answer);
        co_await stream->async_read_some(room, as_result);
        co_return answer;
    };
    BOOST_TEST(stream->is_tls());
    BOOST_TEST(test::run(context, talk()) == "pong");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace http_client_tests
