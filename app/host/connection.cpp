#include "connection.hpp"

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <charconv>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/memory_budget.hpp>

#include "answers.hpp"
#include "host.hpp"
#include "options.hpp"

namespace ipybox::app::host {
namespace {

json::object limits_json() {
    json::object limits;
    limits.emplace("max_message", max_message);
    limits.emplace("max_depth", mcp::max_message_depth);
    limits.emplace("max_requests", max_requests);
    limits.emplace("max_objects", max_objects);
    limits.emplace("max_transfer", max_transfer);
    return limits;
}

constexpr std::string_view level_names[] = {"trace", "debug", "info", "warning", "error", "off"};

LogLevel log_level(std::string_view name) {
    const auto* found = std::find(std::begin(level_names), std::end(level_names), name);
    return static_cast<LogLevel>(found - std::begin(level_names));
}

json::object initialize(HostState& host, Request& request) {
    if (host.initialized)
        throw Error(errc::bad_argument, "`initialize` was answered already; it is sent once");
    const auto client = take_object(request.params, "client");
    host.told = log_level(text_of(request.params, "log", "off"));
    host.logger = host.logger_for({});
    host.logger(LogLevel::info,
                "embedded by " + text_of(client, "name") + " " + text_of(client, "version"));
    json::object server, capabilities, result;
    server.emplace("name", "ipybox");
    server.emplace("version", detail::build_version);
    capabilities.emplace("methods", host.protocol.names("methods"));
    capabilities.emplace("notifications", host.protocol.names("notifications"));
    capabilities.emplace("limits", limits_json());
    result.emplace("protocol_version", host.protocol.file().at("version"));
    result.emplace("server", std::move(server));
    result.emplace("capabilities", std::move(capabilities));
    host.initialized = true;
    return result;
}

using Table = std::map<std::string_view, Method>;

// All methods. Throws std::logic_error: protocol.json has others.
Table table_of(const Protocol& protocol) {
    Table table{{"initialize", {"initialize", initialize, nullptr}}};
    for (const auto& part :
         {session_methods(), tools_methods(), kernel_methods(), question_methods(), file_methods()})
        for (const auto& method : part) table.emplace(method.name, method);
    const auto names = protocol.names("methods");
    for (const auto& name : names)
        if (!table.contains(std::string_view(name.as_string())))
            throw std::logic_error("nothing answers " + std::string(name.as_string()));
    if (names.size() != table.size())
        throw std::logic_error("protocol.json does not describe all methods");
    return table;
}

const Table& methods(const Protocol& protocol) {
    static const Table table = table_of(protocol);
    return table;
}

// What has to be possible when too many requests wait.
bool ends_something(std::string_view method) {
    for (const std::string_view name : {"/stop", "/reset", "/close", "/disconnect"})
        if (method.ends_with(name)) return true;
    return false;
}

template <class Map>
auto find_object(const Map& objects, const json::object& params, std::string_view key,
                 const char* what) {
    const auto found = objects.find(text_of(params, key));
    if (found == objects.end())
        throw BadParams("/" + std::string(key),
                        "there is no such " + std::string(what) + "; it may have been closed");
    return found->second;
}

}  // namespace

std::string_view schema() { return schema_text; }

void HostState::notify(std::string_view method, json::object params, Urgency urgency) {
    outbox->put(mcp::rpc_notification(method, std::move(params)), urgency);
}

void HostState::offer(std::string_view method, json::object params) {
    if (ending) return;
    const bool taken = outbox->offer(mcp::rpc_notification(method, std::move(params)));
    if (!taken && !leaving_out)
        logger(LogLevel::warning, "the client does not read: notifications such as " +
                                      std::string(method) + " are left out until it does");
    leaving_out = !taken;
}

Logger HostState::logger_for(const std::string& session) {
    if (told == LogLevel::off) return base_logger;
    Logger both;
    both.level = std::min(told, base_logger.level);
    both.write = [weak = weak_from_this(), session, base = base_logger, level = told](
                     LogLevel at, std::string_view line) {
        base(at, line);
        const auto live = weak.lock();
        if (!live || live->ending || at < level) return;
        json::object params;
        params.emplace("session", handle_json(session));
        params.emplace("level", level_names[static_cast<std::size_t>(at)]);
        params.emplace("text", line);
        live->outbox->offer(mcp::rpc_notification("log/line", std::move(params)));
    };
    return both;
}

bool HostState::was_given(std::string_view handle, char kind, std::uint64_t given) {
    std::uint64_t number = 0;
    if (handle.size() < 2 || handle.front() != kind) return false;
    const auto* end = handle.data() + handle.size();
    const auto [rest, error] = std::from_chars(handle.data() + 1, end, number);
    return error == std::errc() && rest == end && number >= 1 && number <= given;
}

std::string HostState::next_handle(char kind) {
    if (sessions.size() + tools.size() + kernels.size() + gateways.size() >= max_objects)
        throw Error(errc::busy, "there are " + std::to_string(max_objects) +
                                    " sessions, tool servers, kernels and gateways already; "
                                    "close what is not needed");
    return kind + std::to_string(++made);
}

SessionPtr HostState::session_of(const Request& request) const {
    return find_object(sessions, request.params, "session", "session");
}
ToolsPtr HostState::tools_of(const Request& request) const {
    return find_object(tools, request.params, "tools", "tool server");
}
KernelPtr HostState::kernel_of(const Request& request) const {
    return find_object(kernels, request.params, "kernel", "kernel");
}
GatewayPtr HostState::gateway_of(const Request& request) const {
    return find_object(gateways, request.params, "gateway", "gateway");
}

bool HostState::hold(std::size_t bytes) {
    if (bytes > max_held - held) return false;
    held += bytes;
    return true;
}

void HostState::refuse(const mcp::BadLine& line) {
    const auto problem =
        line.problem.empty() ? std::string_view("is no JSON object") : line.problem;
    outbox->answer(failure(line.id, line.code, "this line " + std::string(problem)));
}

void HostState::refuse_batch() {
    outbox->answer(failure(json::value(), mcp::rpc_invalid_request,
                           "batches are not taken: send each message in a line of its own"));
}

void HostState::accept(json::object message) {
    auto found = protocol.read(std::move(message), initialized);
    using Kind = Incoming::Kind;
    if (found.kind == Kind::refused) outbox->answer(found.answer);
    if (found.kind == Kind::ignored) logger(LogLevel::warning, "left out: " + found.note);
    if (found.kind == Kind::notification) take_notification(found);
    if (found.kind == Kind::request) begin(std::move(found));
}

void HostState::begin(Incoming found) {
    const auto& method = methods(protocol).at(found.method);
    const auto request = std::make_shared<Request>();
    request->id = std::move(found.id);
    request->method = method.name;
    request->params = std::move(found.params);
    if (method.at_once) {
        json::object result;
        std::exception_ptr error;
        try {
            result = method.at_once(*this, *request);
        } catch (...) {
            error = std::current_exception();
        }
        outbox->answer(error ? failure_of(request->id, error)
                             : mcp::rpc_result(request->id, std::move(result)));
        return;
    }
    const auto key = detail::write_json(request->id);
    if (requests.contains(key)) {
        outbox->answer(failure(request->id, mcp::rpc_invalid_request,
                               "a request with this id is being answered: give each its own"));
        return;
    }
    const auto size = mcp::text_size(request->params);
    const auto most = ends_something(method.name) ? max_requests + max_objects : max_requests;
    if (requests.size() >= most || !hold(size)) {
        outbox->answer(failure(request->id, rpc_failed,
                               "too many requests, or too much data, wait at once: wait for "
                               "answers first",
                               "busy"));
        return;
    }
    request->size = size;
    requests.emplace(key, request);
    const auto self = shared_from_this();
    auto work = method.in_time(self, request);
    asio::co_spawn(
        executor, std::move(work),
        asio::bind_cancellation_slot(
            request->signal.slot(), [self, request](std::exception_ptr error, json::object result) {
                self->finish_request(request, error, std::move(result));
            }));
}

void HostState::finish_request(const RequestPtr& request, std::exception_ptr error,
                               json::object result) {
    requests.erase(detail::write_json(request->id));
    release(request->size);
    if (error)
        outbox->answer(failure_of(request->id, error));
    else if (request->interrupt)  // had room, and is large
        outbox->put(mcp::rpc_result(request->id, std::move(result)));
    else
        outbox->answer(mcp::rpc_result(request->id, std::move(result)));
    request->interrupt = nullptr;
    changed.notify();
}

void HostState::take_notification(const Incoming& found) {
    if (found.method == "$/cancel") return cancel(found.params.at("id"));
    const auto request = requests.find(detail::write_json(found.params.at("request")));
    if (request == requests.end() || !request->second->credit) return;
    auto& credit = *request->second->credit;
    constexpr std::int64_t most = std::int64_t{1} << 53;
    const auto more = static_cast<std::int64_t>(count_of(found.params, "bytes", 0));
    credit = std::min(most, std::min(most, credit) + more);
    request->second->credited->notify();
}

void HostState::cancel(const json::value& id) {
    const auto found = requests.find(detail::write_json(id));
    if (found == requests.end()) return;
    // Kept: what is cancelled may end at once.
    const auto request = found->second;
    request->cancelled = true;
    if (const auto interrupt = request->interrupt)
        interrupt();
    else
        request->signal.emit(asio::cancellation_type::terminal);
}

// What ends while others do, each in its own time.
struct Endings {
    explicit Endings(const asio::any_io_executor& executor) : changed(executor) {}
    std::size_t waiting = 0;
    Event changed;
};

static void begin_ending(const HostPtr& host, const std::shared_ptr<Endings>& endings,
                         awaitable<void> work) {
    ++endings->waiting;
    asio::co_spawn(host->executor, std::move(work), [endings](std::exception_ptr) {
        --endings->waiting;
        endings->changed.notify();
    });
}

awaitable<void> HostState::finish(HostPtr self, Duration grace) {
    self->ending = true;
    const auto deadline = Clock::now() + grace;
    // Questions first: whoever waits for an answer gets none any more.
    for (const auto& [handle, question] : self->questions) {
        question->pending.leave(Question::client);
        question->changed.notify();
    }
    const auto endings = std::make_shared<Endings>(self->executor);
    // Copies, because what ends may take itself out.
    const auto sessions = self->sessions;
    for (const auto& [handle, session] : sessions)
        begin_ending(self, endings, session->code->stop());
    const auto tools = self->tools;
    for (const auto& [handle, one] : tools) begin_ending(self, endings, one->server->reset());
    const auto kernels = self->kernels;
    for (const auto& [handle, kernel] : kernels)
        begin_ending(self, endings, kernel->client->disconnect());
    const auto gateways = self->gateways;
    for (const auto& [handle, gateway] : gateways)
        begin_ending(self, endings, gateway->process->stop(grace));
    const auto requests = self->requests;
    for (const auto& [id, request] : requests)
        if (!request->interrupt)
            request->signal.emit(asio::cancellation_type::terminal);
        else if (request->credited)
            request->credited->notify();
    while (endings->waiting > 0 && Clock::now() < deadline)
        co_await endings->changed.wait(deadline);
    while (!self->requests.empty() && Clock::now() < deadline)
        co_await self->changed.wait(deadline);
}

struct Connection::Impl {
    Impl(asio::any_io_executor executor, PluginRegistry& registry, Logger logger)
        : host(std::make_shared<HostState>(executor, registry, std::move(logger))),
          stopped(executor) {}
    HostPtr host;
    Event stopped;
    bool stopping = false;

    static awaitable<void> read_lines(std::shared_ptr<Impl> self,
                                      std::shared_ptr<asio::posix::stream_descriptor> input);
    static awaitable<void> until_stopped(std::shared_ptr<Impl> self) {
        while (!self->stopping) co_await self->stopped.wait();
    }
    static awaitable<void> until_broken(std::shared_ptr<Impl> self) {
        while (!self->host->outbox->broken()) co_await self->host->outbox->progress();
    }
};

awaitable<void> Connection::Impl::read_lines(
    std::shared_ptr<Impl> self, std::shared_ptr<asio::posix::stream_descriptor> input) {
    const auto host = self->host;
    MemoryBudget::process().ensure(3 * max_message);
    mcp::MessageSplitter splitter(
        max_message, [host](const mcp::BadLine& line) { host->refuse(line); },
        [host](const json::array&) { host->refuse_batch(); });
    for (;;) {
        // A client that sends and does not read is not read from either.
        while (host->outbox->crowded() && !host->outbox->broken()) {
            co_await host->outbox->progress();
        }
        const auto room = splitter.prepare();
        auto [error, size] =
            co_await input->async_read_some(asio::buffer(room.data, room.size), as_result);
        if (error) co_return;
        splitter.commit(size);
        for (;;) {
            auto message = splitter.next();
            if (!message) {
                host->outbox->answer(failure(json::value(), mcp::rpc_invalid_request,
                                             "a message does not end within " +
                                                 std::to_string(splitter.most_skipped()) +
                                                 " bytes"));
                co_return;
            }
            if (!*message) break;
            try {
                host->accept(std::move(**message));
            } catch (const std::exception& lost) {
                host->logger(LogLevel::error, std::string("a message was lost: ") + lost.what());
                host->outbox->answer(
                    failure(json::value(), mcp::rpc_internal_error, lost.what(), "internal"));
            }
        }
    }
}

Connection::Connection(asio::any_io_executor executor, PluginRegistry& registry, Logger logger)
    : impl_(std::make_shared<Impl>(std::move(executor), registry, std::move(logger))) {
    methods(impl_->host->protocol);
}

Connection::~Connection() {
    auto& host = *impl_->host;
    host.ending = true;
    host.outbox->give_up();
    host.questions.clear();
    host.inputs.clear();
    // Coroutines that are not resumed any more may hold what these are in.
    for (const auto& [handle, session] : host.sessions) session->code.reset();
    for (const auto& [handle, tools] : host.tools) tools->server.reset();
    for (const auto& [handle, kernel] : host.kernels) kernel->client.reset();
    for (const auto& [handle, gateway] : host.gateways) gateway->process.reset();
}

void Connection::stop() {
    impl_->stopping = true;
    impl_->stopped.notify();
}

bool Connection::still_reads() const { return impl_->host->reading > 0; }

awaitable<void> Connection::serve(UniqueFd in, UniqueFd out) {
    const auto impl = impl_;
    const auto host = impl->host;
    auto input = std::make_shared<asio::posix::stream_descriptor>(host->executor, in.release());
    auto output = std::make_shared<asio::posix::stream_descriptor>(host->executor, out.release());
    asio::co_spawn(host->executor, Outbox::write_all(host->outbox, output), asio::detached);
    asio::co_spawn(host->executor, Impl::until_broken(impl), [impl](std::exception_ptr) {
        impl->stopping = true;
        impl->stopped.notify();
    });
    auto reading = Impl::read_lines(impl, input);
    auto stopping = Impl::until_stopped(impl);
    co_await ends_first(std::move(reading), std::move(stopping));
    // All within a second of the end of input.
    co_await HostState::finish(host, std::chrono::milliseconds(600));
    // What is answered already still reaches a client that reads.
    const auto deadline = Clock::now() + std::chrono::milliseconds(200);
    while (!host->outbox->broken() && !host->outbox->empty() && Clock::now() < deadline)
        co_await host->outbox->progress(deadline);
    host->outbox->give_up();
    boost::system::error_code ignored;
    output->cancel(ignored);
}

}  // namespace ipybox::app::host
