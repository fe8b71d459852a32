// --audit-head-to: a URL or a program that gets the heads of the audit log.
#include "audit_head_sender.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdlib>
#include <ipybox/net/http_client.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <memory>
#include <utility>

#include "run_to_end.hpp"

namespace ipybox::app {
namespace {

constexpr std::chrono::seconds head_patience{10};  // for one
constexpr std::chrono::seconds last_patience{5};   // for the last one, when the program ends

constexpr std::string_view head_remedy = "name a program for --audit-head-to that lies elsewhere";

// What a program says is of no use, but it must not wait for somebody to read it.
awaitable<void> read_away(std::shared_ptr<ChildProcess> process) {
    char block[4096];
    boost::system::error_code error;
    while (!error)
        co_await process->output().async_read_some(
            asio::buffer(block), asio::redirect_error(asio::use_awaitable, error));
}

}  // namespace

AuditHeadSender::AuditHeadSender(std::string target, Logger logger)
    : target_(std::move(target)), logger_(std::move(logger)) {
    is_url_ = target_.starts_with("http://") || target_.starts_with("https://");
    if (!is_url_) {
        const char* path = std::getenv("PATH");
        const auto program = find_program(target_, path != nullptr ? path : "");
        if (!program)
            throw Error(errc::bad_argument, "--audit-head-to: there is no program " + target_ +
                                                "; name one, or an http or https URL");
        target_ = program->string();
    } else {
        HttpUrl::parse(target_);
    }
    thread_ = std::thread([this] { work(); });
}

AuditHeadSender::~AuditHeadSender() {
    {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, last_patience, [this] { return idle_ && !waiting_; });
        if (waiting_) problem_ = "there was no time to send the last one";
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
    tell();
}

void AuditHeadSender::send(const std::string& head) {
    {
        const std::lock_guard lock(mutex_);
        waiting_ = head;
    }
    changed_.notify_all();
    tell();
}

// On the thread of the log, because the logger is for that.
void AuditHeadSender::tell() {
    std::string problem;
    {
        const std::lock_guard lock(mutex_);
        if (problem_ == told_) return;
        problem = told_ = problem_;
    }
    if (problem.empty())
        logger_(LogLevel::info, "heads of the audit log are sent again");
    else
        logger_(LogLevel::warning, "a head of the audit log was not sent: " + problem);
}

void AuditHeadSender::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        idle_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return ending_ || waiting_; });
        if (ending_) return;
        const auto head = *std::exchange(waiting_, std::nullopt);
        idle_ = false;
        lock.unlock();
        auto problem = send_now(head);
        lock.lock();
        problem_ = std::move(problem);
    }
}

std::string AuditHeadSender::send_now(const std::string& head) {
    try {
        asio::io_context context;
        if (is_url_) {
            run_to_end(context, post(target_, head));
        } else {
            refuse_written(target_, head_remedy);  // a session may have changed it since
            run_to_end(context, run(target_, head));
        }
        return {};
    } catch (const Error& error) {
        return error.detail();
    } catch (const std::exception& error) {
        return error.what();
    }
}

awaitable<void> AuditHeadSender::post(std::string url, std::string head) {
    const auto executor = co_await asio::this_coro::executor;
    HttpClientOptions options;
    options.max_redirects = 0;
    HttpClient client(executor, options);
    HttpRequest request;
    request.method = "POST";
    request.url = url;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = head + '\n';
    request.repeatable = true;
    request.deadline = Clock::now() + head_patience;
    const auto response = co_await client.send(std::move(request));
    if (response->status() < 200 || response->status() >= 300)
        throw Error(errc::http_failed,
                    "the server answered with status " + std::to_string(response->status()));
}

awaitable<void> AuditHeadSender::run(std::string program, std::string head) {
    const auto executor = co_await asio::this_coro::executor;
    SpawnRequest request;
    request.argv = {program};
    const char* path = std::getenv("PATH");
    const char* home = std::getenv("HOME");
    request.env["PATH"] = host_search_path(path != nullptr ? path : "");
    if (home != nullptr) request.env["HOME"] = home;
    request.stdio = Stdio::pipes;
    const auto process = std::make_shared<ChildProcess>(executor, std::move(request));
    asio::co_spawn(executor, read_away(process), asio::detached);
    head += '\n';
    boost::system::error_code error;
    co_await asio::async_write(process->input(), asio::buffer(head),
                               asio::redirect_error(asio::use_awaitable, error));
    process->input().close(error);
    const auto status = co_await process->wait(Clock::now() + head_patience);
    if (!status)
        throw Error(errc::timed_out, program + " did not end within " +
                                         std::to_string(head_patience.count()) + " seconds");
    if (status->code != 0)
        throw Error(errc::io_error, sandbox_kit::describe_end(*process, *status));
}

}  // namespace ipybox::app
