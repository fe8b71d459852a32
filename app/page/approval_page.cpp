#include "approval_page.hpp"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/file.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <charconv>
#include <cstdlib>
#include <deque>
#include <ipybox/approval/granted_rules.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/hex.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_text.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/detail/schema_document.hpp>
#include <ipybox/detail/schema_validator.hpp>
#include <ipybox/detail/utc_time.hpp>
#include <ipybox/net/http_listener.hpp>
#include <ipybox/net/private_listener.hpp>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "page_call.hpp"
#include "page_files.hpp"
#include "page_journal.hpp"
#include "peer_user.hpp"

namespace ipybox::app {
namespace {

namespace http = boost::beast::http;

constexpr std::string_view link_start = "/?token=";
constexpr const char* refused_link = "a link was refused: it was used before, or is of another run";

constexpr const char* security_headers =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n";

PageJournal::Millis now() {
    using namespace std::chrono;
    return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}
PageJournal::Millis millis(Duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

// What is shown to whoever has no cookie; no page of its own.
constexpr std::string_view refused_path = "/refused.html";
std::string_view refused_page() {
    for (const auto& file : page::files)
        if (file.path == refused_path) return file.text;
    return {};
}

bool same(std::string_view given, std::string_view secret) {
    return given.size() == secret.size() &&
           CRYPTO_memcmp(given.data(), secret.data(), secret.size()) == 0;
}

net::HttpReply reply_of(unsigned status, std::string body, std::string type) {
    net::HttpReply reply;
    reply.status = status;
    reply.body = std::move(body);
    reply.content_type = std::move(type);
    reply.headers = security_headers;
    return reply;
}
net::HttpReply page_of(unsigned status, std::string_view body) {
    return reply_of(status, std::string(body), "text/html; charset=utf-8");
}
net::HttpReply json_of(const json::object& body) {
    return reply_of(200, detail::write_json(body), "application/json");
}
json::object problem_of(std::string why) {
    json::object body;
    body["ok"] = false;
    body["problem"] = std::move(why);
    return body;
}

}  // namespace

struct ApprovalPage::Impl final : net::HttpService,
                                  SessionWatcher,
                                  std::enable_shared_from_this<Impl> {
    Impl(asio::any_io_executor e, ApprovalPageOptions o)
        : executor(std::move(e)),
          options(std::move(o)),
          journal([this](json::object event) { tell(event); }),
          output(executor) {
        net::HttpLimits limits;
        limits.max_head = 16u << 10;
        limits.max_body = 16u << 20;  // edited arguments
        limits.max_connections = 128;
        limits.write_timeout = std::chrono::seconds(60);
        listener =
            std::make_shared<net::HttpListener>(executor, "approval page", limits, options.logger);
    }

    // ---- who may ----

    net::HttpReply check(net::HttpPeer& peer, const net::HttpServerRequest& head) override;
    net::HttpReply refuse(net::HttpPeer& peer, unsigned status, std::string_view page,
                          const char* why) const;
    net::HttpReply refusal(unsigned status, const std::string& why) override {
        return reply_of(status, detail::write_json(problem_of(why)), "application/json");
    }
    bool may_be(net::HttpPeer& peer) const;
    bool signed_in(const net::HttpServerRequest& head) const;
    bool has_link(std::string_view token) const;
    // Once.
    bool spend(std::string_view token);
    std::string make_link();
    void keep_link();

    // ---- answering requests ----

    awaitable<bool> answer(net::HttpPeerPtr peer, net::HttpServerRequest request) override {
        return respond(shared_from_this(), std::move(peer), std::move(request));
    }
    static awaitable<bool> respond(std::shared_ptr<Impl> self, net::HttpPeerPtr peer,
                                   net::HttpServerRequest request);
    net::HttpReply get(std::string_view target);
    net::HttpReply post(std::string_view target, const std::string& body);
    static awaitable<void> stream(std::shared_ptr<Impl> self, net::HttpPeerPtr peer);

    json::object take_answers(const json::object& request);
    // What is told of answers, and by whom each of them says to be.
    struct Given {
        json::object done;
        std::vector<std::string> by;  // empty: it counts for nothing
    };
    std::optional<Given> given;  // by the request that is being looked at
    // Somebody else may have been first, and the question not be withdrawn yet.
    static awaitable<json::object> confirmed(std::shared_ptr<Impl> self, Given told);
    json::object take_answer(const json::object& answer);
    json::object preview(const json::object& request) const;
    json::object cancel(const json::object& request);

    // ---- questions ----

    struct Question {
        Question(ToolCall c, const asio::any_io_executor& executor)
            : call(std::move(c)), changed(executor) {}
        ToolCall call;
        Event changed;
        std::optional<Decision> decision;
    };
    using QuestionPtr = std::shared_ptr<Question>;
    static awaitable<Decision> ask(std::shared_ptr<Impl> self, ToolCall call);
    static awaitable<void> forget(std::weak_ptr<Impl> weak, asio::any_io_executor executor,
                                  std::string id);
    // Who answered a call that does not wait any more; empty: unknown.
    std::string settled_by(const std::string& id) const {
        const auto found = questions.find(id);
        return found != questions.end() && found->second->decision
                   ? PageJournal::words_of(*found->second->decision)
                   : journal.settled_by(id);
    }
    QuestionPtr find(const std::string& id) const {
        const auto found = questions.find(id);
        return found == questions.end() || found->second->decision ? nullptr : found->second;
    }
    static void settle(Question& question, Decision decision) {
        question.decision = std::move(decision);
        question.changed.notify();
    }
    // What a new grant allows need not be answered one by one.
    void settle_granted();

    // ---- events ----

    struct Reader {
        explicit Reader(const asio::any_io_executor& executor) : changed(executor) {}
        Event changed;
        std::deque<std::shared_ptr<const std::string>> queue;
        std::size_t size = 0;
        bool lost = false;  // it reads too slowly: it comes again, and gets everything anew
    };
    static constexpr std::size_t max_unread = std::size_t{256} << 20;  // bytes
    static constexpr std::size_t max_waiting = std::size_t{64} << 20;  // bytes of questions
    static constexpr std::size_t max_readers = 32;
    void tell(const json::object& event);
    static void give(Reader& reader, const std::shared_ptr<const std::string>& text);
    // Output is told ten times a second at most.
    static awaitable<void> tell_output(std::weak_ptr<Impl> weak);

    void began(const std::string& session, const std::string& execution, const std::string& code,
               std::function<void()> stop) override {
        stops[execution] = std::move(stop);
        journal.begin_cell(session, execution, code, now());
    }
    void printed(const std::string& execution, std::string_view text, bool is_stderr) override {
        journal.print(execution, text, is_stderr);
        output.notify();
    }
    void displayed(const std::string& execution, const json::object& data) override {
        journal.display(execution, data);
        output.notify();
    }
    void ended(const std::string& execution, std::string_view outcome, Duration spent) override {
        stops.erase(execution);
        options.granted->end_execution(execution);
        journal.end_cell(execution, outcome, now(), millis(spent));
    }
    void decided(const ToolCall& call, const json::object* edited,
                 const Decision& decision) override {
        journal.decide(call, edited, decision, now());
    }
    void called(const std::string& call, std::string_view outcome, Duration spent) override {
        journal.end(call, outcome, millis(spent));
    }

    void close() {
        closed = true;
        listener->close();
        output.notify();
        for (const auto& reader : readers) reader->changed.notify();
    }

    asio::any_io_executor executor;
    ApprovalPageOptions options;
    PageJournal journal;
    Event output;
    std::shared_ptr<net::HttpListener> listener;
    std::string address;      // HOST:PORT
    std::string cookie_name;  // of this port, because cookies are for all ports of a host
    std::set<std::string> links;
    std::optional<detail::PrivateDirectory> link_directory;
    std::string kept_link;  // that of the file in it
    std::deque<std::string> cookies;
    std::map<std::string, QuestionPtr> questions;
    std::map<std::string, std::function<void()>> stops;  // of executions that run
    std::set<std::shared_ptr<Reader>> readers;
    bool closed = false;
};

ApprovalPage::ApprovalPage(asio::any_io_executor executor, ApprovalPageOptions options)
    : state_(std::make_shared<Impl>(std::move(executor), std::move(options))) {}

ApprovalPage::~ApprovalPage() { state_->close(); }

std::string ApprovalPage::listen(const std::string& host, unsigned short port) {
    asio::ip::tcp::acceptor acceptor(state_->executor);
    state_->address = net::listen_on_loopback(acceptor, host, port, "the approval page");
    state_->cookie_name =
        "ipybox_approval_" + state_->address.substr(state_->address.rfind(':') + 1);
    state_->listener->start(state_, std::move(acceptor));
    asio::co_spawn(state_->executor, Impl::tell_output(state_), asio::detached);
    state_->keep_link();
    return state_->make_link();
}

awaitable<Decision> ApprovalPage::ask(ToolCall call) { return Impl::ask(state_, std::move(call)); }

SessionWatcherPtr ApprovalPage::watcher() const { return state_; }

// ---- who may ----

std::string ApprovalPage::Impl::make_link() {
    constexpr std::size_t most = 16;
    if (links.size() >= most)
        std::erase_if(links, [&](const auto& one) { return !kept_link.ends_with("=" + one); });
    const auto token = detail::random_hex(32);
    links.insert(token);
    return "http://" + address + std::string(link_start) + token;
}

constexpr const char* link_file = "link";

// A client of `serve` may show nobody what is printed.
void ApprovalPage::Impl::keep_link() {
    if (options.link_place.empty()) return;
    try {
        if (!link_directory) {
            std::error_code ignored;
            std::filesystem::create_directories(options.link_place.parent_path(), ignored);
            if (!detail::make_own_directory(options.link_place))
                throw Error(errc::io_error,
                            options.link_place.string() + " cannot be made, or is another user's");
            link_directory.emplace(options.link_place, ::geteuid());
        }
        kept_link = make_link();
        ::unlinkat(link_directory->handle(), link_file, 0);
        link_directory->write_file(link_file, kept_link + "\n", ::geteuid());
    } catch (const Error& error) {
        options.logger(LogLevel::warning,
                       "approval page: no file keeps its link: " + error.detail());
    }
}

bool ApprovalPage::Impl::has_link(std::string_view token) const {
    return std::any_of(links.begin(), links.end(),
                       [token](const auto& one) { return same(token, one); });
}

bool ApprovalPage::Impl::spend(std::string_view token) {
    for (auto one = links.begin(); one != links.end(); ++one)
        if (same(token, *one)) {
            const bool kept = kept_link.ends_with("=" + *one);
            links.erase(one);
            if (kept) keep_link();
            return true;
        }
    return false;
}

bool ApprovalPage::Impl::signed_in(const net::HttpServerRequest& head) const {
    bool found = false;
    for (const auto& field : head) {
        if (field.name() != http::field::cookie) continue;
        std::string_view rest = field.value();
        while (!rest.empty()) {
            auto one = rest.substr(0, rest.find(';'));
            rest.remove_prefix(std::min(one.size() + 1, rest.size()));
            while (one.starts_with(' ')) one.remove_prefix(1);
            if (!one.starts_with(cookie_name)) continue;
            one.remove_prefix(cookie_name.size());
            if (!one.starts_with('=')) continue;
            for (const auto& cookie : cookies) found |= same(one.substr(1), cookie);
        }
    }
    return found;
}

// Cookies do not know ports: what another user's program on this machine gets hold of must be of no
// use to it.
bool ApprovalPage::Impl::may_be(net::HttpPeer& peer) const {
    const auto user = user_of(peer.socket.native_handle());
    if (!user) return false;
    if (*user == ::geteuid() || *user == 0) return true;
    const char* behind_sudo = std::getenv("SUDO_UID");
    return ::geteuid() == 0 && behind_sudo && std::to_string(*user) == behind_sudo;
}

net::HttpReply ApprovalPage::Impl::refuse(net::HttpPeer& peer, unsigned status,
                                          std::string_view page, const char* why) const {
    options.logger(LogLevel::warning,
                   "approval page: refused with status " + std::to_string(status) + ": " + why);
    peer.keep_alive = false;
    return page.empty() ? reply_of(status, detail::write_json(problem_of(why)), "application/json")
                        : page_of(status, page);
}

net::HttpReply ApprovalPage::Impl::check(net::HttpPeer& peer, const net::HttpServerRequest& head) {
    const auto value = [&head](std::string_view name) { return std::string_view(head[name]); };
    const bool post = head.method() == http::verb::post;
    if (!post && head.method() != http::verb::get)
        return refuse(peer, 405, {}, "only GET and POST are answered");
    if (head.count(http::field::host) != 1 ||
        !net::is_own_origin("http://" + std::string(value("Host")), peer.port))
        return refuse(peer, 403, {}, "the page is not known by that host name");
    const bool has_origin = head.count(http::field::origin) > 0;
    if ((has_origin || post) &&
        (head.count(http::field::origin) != 1 || !net::is_own_origin(value("Origin"), peer.port)))
        return refuse(peer, 403, {}, "the request comes from another page");
    std::string_view target = head.target();
    const bool link = !post && target.starts_with(link_start);
    // The printed link may be opened from anywhere; nothing else may be reached from other sites.
    if (const auto site = value("Sec-Fetch-Site");
        !site.empty() && site != "same-origin" && site != "none" && !(link && site == "cross-site"))
        return refuse(peer, 403, {}, "the request comes from another site");
    if (const auto dest = value("Sec-Fetch-Dest");
        (link || target == "/") && !dest.empty() && dest != "document")
        return refuse(peer, 403, {}, "the page cannot be a part of another one");
    // Before the system is asked for the user, which takes the longer the more connections others
    // have.
    if (link && !has_link(target.substr(link_start.size())))
        return refuse(peer, 403, refused_page(), refused_link);
    if (!link && !signed_in(head))
        return refuse(peer, 401, refused_page(), "there is no valid cookie");
    if (!may_be(peer))
        return refuse(peer, 403, {}, "the page answers programs of the user who started it only");
    if (link) return {};  // its token is spent later
    if (!post) return {};
    auto type = value("Content-Type");
    type = type.substr(0, type.find(';'));
    if (type != "application/json")
        return refuse(peer, 415, {}, "Content-Type must be application/json");
    return {};
}

// ---- answering requests ----

awaitable<bool> ApprovalPage::Impl::respond(std::shared_ptr<Impl> self, net::HttpPeerPtr peer,
                                            net::HttpServerRequest request) {
    const std::string target(request.target());
    if (request.method() == http::verb::get && target == "/events" &&
        self->readers.size() < max_readers) {
        co_await stream(self, peer);
        co_return false;
    }
    auto reply = request.method() == http::verb::post ? self->post(target, request.body())
                                                      : self->get(target);
    if (auto told = std::exchange(self->given, std::nullopt)) {
        auto done = co_await confirmed(self, std::move(*told));
        reply = json_of(std::move(done));
    }
    auto text = render(*peer, reply);
    const bool written = co_await peer->write(std::move(text));
    co_return written && peer->keep_alive;
}

net::HttpReply ApprovalPage::Impl::get(std::string_view target) {
    if (target.starts_with(link_start)) {
        if (!spend(target.substr(link_start.size()))) {
            options.logger(LogLevel::warning, std::string("approval page: ") + refused_link);
            return page_of(403, refused_page());
        }
        constexpr std::size_t most = 64;
        cookies.push_back(detail::random_hex(32));
        if (cookies.size() > most) cookies.pop_front();
        // A cookie of this kind goes along from the next page on, not with a redirection.
        auto reply = page_of(200,
                             "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
                             "<meta http-equiv=\"refresh\" content=\"0;url=/\">"
                             "<link rel=\"icon\" href=\"data:,\">"
                             "<title>ipybox</title><p><a href=\"/\">To the page</a></html>\n");
        reply.headers += "Set-Cookie: " + cookie_name + "=" + cookies.back() +
                         "; HttpOnly; SameSite=Strict; Path=/\r\n";
        return reply;
    }
    for (const auto& file : page::files)
        if (target == file.path && target != refused_path)
            return reply_of(200, std::string(file.text), std::string(file.type));
    if (target == "/events")
        return reply_of(503, detail::write_json(problem_of("too many pages are open")),
                        "application/json");
    return reply_of(404, detail::write_json(problem_of("there is no such page")),
                    "application/json");
}

net::HttpReply ApprovalPage::Impl::post(std::string_view target, const std::string& body) try {
    auto read = detail::read_json(body, 128, detail::default_max_decoded);
    if (!read.problem.empty()) return refusal(400, "the request " + read.problem);
    const auto* request = read.value.if_object();
    if (!request) return refusal(400, "the request must be an object");
    if (target == "/answer") return json_of(take_answers(*request));
    if (target == "/preview") return json_of(preview(*request));
    if (target == "/cancel") return json_of(cancel(*request));
    if (target == "/link") {
        json::object done;
        done["ok"] = true;
        done["link"] = make_link();
        return json_of(done);
    }
    return refusal(404, "there are /answer, /preview, /cancel and /link");
} catch (const Error& error) {
    return json_of(problem_of(error.detail()));
}

json::object ApprovalPage::Impl::take_answers(const json::object& request) {
    const auto* list = request.if_contains("answers");
    if (!list || !list->is_array()) throw Error(errc::bad_argument, "answers: an array is needed");
    json::array results;
    std::vector<std::string> by;
    for (const auto& one : list->get_array()) {
        const auto* answer = one.if_object();
        if (!answer) throw Error(errc::bad_argument, "answers: objects are needed");
        json::object result;
        try {
            result = take_answer(*answer);
        } catch (const Error& error) {
            result = problem_of(error.detail());
        }
        result["id"] = detail::string_of(*answer, "id");
        const auto found = questions.find(std::string(detail::string_of(result, "id")));
        const bool counts = result.at("ok").as_bool() && found != questions.end() &&
                            found->second->decision.has_value();
        by.push_back(counts ? found->second->decision->by : std::string());
        results.emplace_back(std::move(result));
    }
    json::object done;
    done["ok"] = true;
    done["results"] = std::move(results);
    given.emplace(Given{done, std::move(by)});
    return done;
}

awaitable<json::object> ApprovalPage::Impl::confirmed(std::shared_ptr<Impl> self, Given told) {
    // Where nobody tells what was decided, as of what the client itself asked for, it stands.
    const auto limit = Clock::now() + std::chrono::milliseconds(400);
    auto& results = told.done.at("results").as_array();
    for (std::size_t i = 0; i < results.size(); ++i) {
        // Changed arguments are judged again.
        if (told.by[i].empty() || told.by[i] == "page: edited") continue;
        auto& result = results[i].as_object();
        const std::string id(detail::string_of(result, "id"));
        while (self->journal.waits(id) && Clock::now() < limit) {
            const auto soon = Clock::now() + std::chrono::milliseconds(1);
            co_await sleep_until(soon);
        }
        const auto words = self->journal.settled_by(id);
        if (self->journal.waits(id) || words.empty() || words.find(told.by[i]) != words.npos)
            continue;
        result = problem_of("it was answered before: " + words);
        result["id"] = id;
    }
    co_return std::move(told.done);
}

// Throws Error when the answer counts for nothing.
json::object ApprovalPage::Impl::take_answer(const json::object& answer) {
    for (const auto& entry : answer)
        if (entry.key() != "id" && entry.key() != "verdict" && entry.key() != "reason" &&
            entry.key() != "arguments" && entry.key() != "grant")
            throw Error(errc::bad_argument,
                        "unknown key \"" + std::string(entry.key()) +
                            "\"; accepted: id, verdict, reason, arguments, grant");
    const std::string id(detail::string_of(answer, "id"));
    const auto question = find(id);
    if (!question) {
        const auto by = settled_by(id);
        throw Error(errc::bad_argument, by.empty() ? "the call does not wait any more"
                                                   : "it was answered before: " + by);
    }
    const auto& call = question->call;
    const auto verdict = detail::string_of(answer, "verdict");
    const auto *edited = answer.if_contains("arguments"), *grant = answer.if_contains("grant");
    Decision decision;
    if (verdict == "deny") {
        if (edited || grant)
            throw Error(errc::bad_argument, "a denial has neither arguments nor a grant");
        std::string reason(detail::string_of(answer, "reason"));
        reason.resize(detail::utf8_border(reason, 2000));
        decision = Decision(Verdict::deny, reason.empty() ? "the user said no" : std::move(reason));
        decision.by = "page: no";
    } else if (verdict != "allow") {
        throw Error(errc::bad_argument, "verdict: allow or deny");
    } else if (edited) {
        if (grant) throw Error(errc::bad_argument, "edited arguments are allowed once");
        if (call.origin != CallOrigin::mcp || !call.edited)
            throw Error(errc::bad_argument, "only the arguments of a tool can be changed");
        if (!edited->is_string()) throw Error(errc::bad_argument, "arguments: a text is needed");
        auto read = detail::read_json(edited->get_string(), 128, detail::default_max_decoded);
        if (!read.problem.empty())
            throw Error(errc::bad_argument, "the arguments are what " + read.problem);
        if (!read.value.is_object())
            throw Error(errc::bad_argument, "the arguments must be an object");
        const json::value schema(*call.input_schema);
        detail::SchemaDocument document(schema);
        detail::SchemaValidator validator(document);
        if (const auto problem = validator.problem(document.root(), read.value))
            throw Error(errc::bad_argument, "the arguments do not fit the tool: " + *problem);
        decision = Decision(Verdict::allow);
        decision.arguments =
            std::make_shared<const json::object>(std::move(read.value.get_object()));
        decision.by = "page: edited";
    } else {
        decision = Decision(Verdict::allow);
        decision.by = "page: once";
        if (grant) {
            if (!grant->is_object()) throw Error(errc::bad_argument, "grant: an object is needed");
            auto wanted = read_grant(call, grant->get_object());
            options.granted->grant(call, std::move(wanted.rule), wanted.lifetime);
            decision.by = wanted.by;
        }
    }
    settle(*question, std::move(decision));
    if (grant) settle_granted();
    json::object done;
    done["ok"] = true;
    return done;
}

json::object ApprovalPage::Impl::preview(const json::object& request) const {
    const auto question = find(std::string(detail::string_of(request, "id")));
    if (!question) throw Error(errc::bad_argument, "the call does not wait any more");
    const auto* grant = detail::object_of(request, "grant");
    if (!grant) throw Error(errc::bad_argument, "grant: an object is needed");
    auto wanted = read_grant(question->call, *grant);
    if (wanted.lifetime.until) wanted.rule["expires"] = detail::utc_time(*wanted.lifetime.until);
    const approval::Rule rule(json::value(wanted.rule), "the rule", 1);
    const auto at = std::chrono::system_clock::now();
    std::size_t steps = approval::rule_steps;
    const bool fits = rule.fits(facts_of(question->call), at, steps) == approval::Fit::yes;
    // Code wrote what is looked at: all of it together must not keep the host busy.
    std::size_t matched = 0, looked_at = 0;
    steps = approval::rule_steps;
    journal.each_decided([&](const ToolCall& call) {
        const auto fit = rule.fits(facts_of(call), at, steps);
        if (steps == 0) return;
        ++looked_at;
        matched += fit == approval::Fit::yes ? 1 : 0;
    });
    json::object shown;
    shown["ok"] = fits;
    if (!fits) shown["problem"] = "this call itself does not fit the pattern";
    shown["rule"] = wanted.rule;
    shown["rule_text"] = detail::write_json(wanted.rule);  // JavaScript drops digits
    shown["matched"] = matched;
    shown["of"] = looked_at;
    return shown;
}

json::object ApprovalPage::Impl::cancel(const json::object& request) {
    const auto found = stops.find(std::string(detail::string_of(request, "execution")));
    if (found == stops.end()) throw Error(errc::bad_argument, "that cell does not run any more");
    const auto stop = found->second;
    stop();
    json::object done;
    done["ok"] = true;
    return done;
}

// ---- questions ----

awaitable<Decision> ApprovalPage::Impl::ask(std::shared_ptr<Impl> self, ToolCall call) {
    if (const auto known = self->options.granted->find(call)) co_return *known;
    if (self->journal.waiting_memory() > max_waiting) {
        self->options.logger(LogLevel::warning,
                             "approval page: too much waits for an answer to show another call");
        co_return Decision();
    }
    if (call.id.empty()) call.id = detail::random_hex(8);
    json::object extra;
    extra["changed"] = self->options.granted->changes(call);
    extra["may_remember"] = self->options.granted->may_remember(call);
    extra["editable"] = call.origin == CallOrigin::mcp && call.edited;
    const auto asked = now();
    std::optional<PageJournal::Millis> until;
    if (self->options.approval_timeout > Duration::zero())
        until = asked + millis(self->options.approval_timeout);
    const auto question = std::make_shared<Question>(std::move(call), self->executor);
    const auto& id = question->call.id;
    struct Leave {
        std::shared_ptr<Impl> self;
        QuestionPtr question;
        ~Leave() {
            const auto& id = question->call.id;
            self->questions.erase(id);
            self->journal.leave(id, question->decision);
            asio::co_spawn(self->executor, forget(self, self->executor, id), asio::detached);
        }
    } const leave{self, question};
    self->questions[id] = question;
    self->journal.ask(question->call, asked, until, std::move(extra));
    while (!question->decision) co_await question->changed.wait();
    co_return *question->decision;
}

// Who decided is known in a moment; if not, the question must not stay.
awaitable<void> ApprovalPage::Impl::forget(std::weak_ptr<Impl> weak, asio::any_io_executor,
                                           std::string id) {
    const auto soon = Clock::now() + std::chrono::milliseconds(500);
    co_await sleep_until(soon);
    if (const auto self = weak.lock())
        self->journal.forget_left(id, now(), "answered elsewhere, or withdrawn");
}

void ApprovalPage::Impl::settle_granted() {
    for (const auto& [id, question] : questions) {
        if (question->decision) continue;
        try {
            if (auto known = options.granted->find(question->call))
                settle(*question, std::move(*known));
        } catch (const Error& error) {
            options.logger(LogLevel::warning, "approval page: " + error.detail());
        }
    }
}

// ---- events ----

void ApprovalPage::Impl::tell(const json::object& event) {
    if (readers.empty()) return;
    const auto text =
        std::make_shared<const std::string>("data: " + detail::write_json(event) + "\n\n");
    for (const auto& reader : readers) give(*reader, text);
}

void ApprovalPage::Impl::give(Reader& reader, const std::shared_ptr<const std::string>& text) {
    if (reader.lost) return;
    reader.size += text->size();
    reader.queue.push_back(text);
    if (reader.size > max_unread) {
        reader.lost = true;
        reader.queue.clear();
    }
    reader.changed.notify();
}

awaitable<void> ApprovalPage::Impl::tell_output(std::weak_ptr<Impl> weak) {
    for (;;) {
        auto self = weak.lock();
        if (!self || self->closed) co_return;
        if (self->journal.flush()) {
            self = nullptr;
            const auto next = Clock::now() + std::chrono::milliseconds(100);
            co_await sleep_until(next);
        } else {
            co_await self->output.wait();
        }
    }
}

awaitable<void> ApprovalPage::Impl::stream(std::shared_ptr<Impl> self, net::HttpPeerPtr peer) {
    const auto reader = std::make_shared<Reader>(self->executor);
    struct Leave {
        Impl& self;
        std::shared_ptr<Reader> reader;
        ~Leave() { self.readers.erase(reader); }
    } const leave{*self, reader};
    peer->keep_alive = false;
    std::string head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n";
    head += security_headers;
    head += "\r\nretry: 1000\n\n";
    auto everything = self->journal.state(now());
    everything["version"] = detail::build_version;
    everything["session_note"] = self->options.note;
    give(*reader,
         std::make_shared<const std::string>("data: " + detail::write_json(everything) + "\n\n"));
    self->readers.insert(reader);
    bool open = co_await peer->write(std::move(head));
    auto quiet_until = Clock::now() + std::chrono::seconds(15);
    while (open && !self->closed && !reader->lost) {
        std::string text;
        while (!reader->queue.empty() && text.size() < (std::size_t{256} << 10)) {
            text += *reader->queue.front();
            reader->size -= reader->queue.front()->size();
            reader->queue.pop_front();
        }
        if (text.empty() && Clock::now() >= quiet_until) text = ": still here\n\n";
        if (text.empty()) {
            co_await reader->changed.wait(quiet_until);
            continue;
        }
        open = co_await peer->write(std::move(text));
        quiet_until = Clock::now() + std::chrono::seconds(15);
    }
}

std::filesystem::path page_link_place() {
    const auto state = config::state_directory();
    return state.empty() ? state : state / "pages";
}

std::vector<std::filesystem::path> page_link_files() {
    std::vector<std::filesystem::path> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(page_link_place(), error)) {
        const UniqueFd place(
            ::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        // What a killed process has left is locked by nobody.
        if (place && ::flock(place.get(), LOCK_EX | LOCK_NB) != 0 &&
            ::faccessat(place.get(), link_file, R_OK, 0) == 0)
            found.push_back(entry.path() / link_file);
    }
    return found;
}

}  // namespace ipybox::app
