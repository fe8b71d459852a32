// What docs/scaling.md promises of threads: one for each io_context, or a strand of a pool, one
// registry for all. Built with ThreadSanitizer, too (scripts/test --full).
#include <atomic>
#include <boost/asio/strand.hpp>
#include <functional>
#include <ipybox/executor/blocking.hpp>
#include <ipybox/mcp/server.hpp>
#include <mutex>
#include <thread>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;

namespace threads_tests {

namespace {
constexpr int several = 3;  // executors at once

// Whoever answers works on a thread of its own, as a window or a web server does.
class Person {
public:
    ~Person() {
        for (auto& answer : answers_) answer.join();
    }
    void accept(const ApprovalRequest& request) {
        const std::lock_guard lock(mutex_);
        answers_.emplace_back([request] { request.accept(); });
    }
    void answer(const InputRequest& request) {
        const std::lock_guard lock(mutex_);
        answers_.emplace_back([request] { request.answer("from elsewhere"); });
    }

private:
    std::mutex mutex_;
    std::vector<std::thread> answers_;
};

// A workspace with an executor in it, whose work is done where `executor` says.
struct Member {
    Member(const asio::any_io_executor& executor, PluginRegistry& plugins, int number)
        : server(executor), spans(std::make_shared<int>(0)) {
        if (::geteuid() == 0 && ::chown(workspace.path().c_str(), 65534, 65534) != 0)
            throw std::runtime_error("chown failed");
        CodeExecutorOptions options;
        options.python = test::kernel_python();
        options.workspace = workspace.path();
        options.kernel_init_timeout = 60s;
        options.session = "member " + std::to_string(number);
        options.allow_input = true;
        options.on_span = [count = spans](const Span& span) { *count += span.end != 0; };
        server.add_tool({
            .name = "double",
            .description = "Doubles a number.",
            .input_schema = {{"type", "object"},
                             {"properties", {{"n", {{"type", "integer"}}}}},
                             {"required", {"n"}}},
            .call = [](McpContext, json::object arguments) -> awaitable<McpToolResult> {
                co_return std::to_string(2 * arguments.at("n").to_number<std::int64_t>());
            },
        });
        code_executor = std::make_unique<CodeExecutor>(executor, plugins, options);
    }

    // Everything an application does, one after the other; returns what was wrong.
    awaitable<std::string> work(Person& person) {
        co_await code_executor->start();
        json::object params;
        params["command"] = test::kernel_python().string();
        const auto script =
            std::filesystem::path(test::required_environment("IPYBOX_TEST_SUPPORT")) /
            "mcp_server.py";
        params["args"] = json::array{script.string()};
        co_await code_executor->add_server("own", params);
        co_await code_executor->add_tools("local", server);
        for (int round = 0; round < 3; ++round) {
            auto wrong =
                co_await cell(person,
                              "from mcptools.own import echo\n"
                              "from mcptools.local import double\n"
                              "print(echo.run(text='x' * 3), double.run(n=21), input('?'))",
                              "xxx 42 from elsewhere");
            if (!wrong.empty()) co_return wrong;
        }
        code_executor->set_policy(json::parse(R"({"first_match": ["deny"]})"));
        auto denied = co_await cell(person, "double.run(n=1)", "");
        if (denied.find("ApprovalRejectedError") == std::string::npos) co_return denied;
        const auto listed = co_await code_executor->variables();
        co_await code_executor->reset();
        auto wrong = co_await cell(person, "1 + 1", "2");
        if (listed.empty()) wrong += " no variables";
        co_await code_executor->stop();
        if (*spans == 0) wrong += " no spans";
        co_return wrong;
    }

    test::TemporaryDirectory workspace;
    McpServer server;
    std::shared_ptr<int> spans;
    std::unique_ptr<CodeExecutor> code_executor;

private:
    awaitable<std::string> cell(Person& person, std::string code, std::string expected) {
        auto execution = co_await code_executor->stream(std::move(code), 60s);
        for (;;) {
            auto event = co_await execution.next();
            if (!event) co_return "no result";
            if (const auto* request = std::get_if<ApprovalRequest>(&*event))
                person.accept(*request);
            else if (const auto* question = std::get_if<InputRequest>(&*event))
                person.answer(*question);
            else if (const auto* result = std::get_if<CodeExecutionResult>(&*event))
                co_return result->ok() && result->text.value_or("") == expected
                    ? ""
                    : "not as expected: " + result->text.value_or("") + result->error;
        }
    }
};

// Outcomes of several members, told from several threads.
class Outcomes {
public:
    // Stops the context when the last of `members` has ended.
    std::function<void(std::exception_ptr, std::string)> next(asio::io_context& context,
                                                              int members) {
        return
            [this, &context, members](const std::exception_ptr& error, const std::string& wrong) {
                const std::lock_guard lock(mutex_);
                try {
                    if (error) std::rethrow_exception(error);
                    if (!wrong.empty()) wrong_ += wrong + '\n';
                } catch (const std::exception& failure) {
                    wrong_ += std::string(failure.what()) + '\n';
                }
                if (++ended_ >= members) context.stop();
            };
    }
    void check(int expected) {
        const std::lock_guard lock(mutex_);
        BOOST_TEST(wrong_ == "");
        BOOST_TEST(ended_ == expected);
    }

private:
    std::mutex mutex_;
    std::string wrong_;
    int ended_ = 0;
};
}  // namespace

BOOST_AUTO_TEST_SUITE(threads)

BOOST_AUTO_TEST_CASE(executors_of_several_threads_share_a_registry) {
    auto plugins = test::registry();
    Outcomes outcomes;
    {
        Person person;
        std::vector<std::thread> all;
        for (int number = 0; number < several; ++number)
            all.emplace_back([&, number] {
                asio::io_context context(1);
                Member member(context.get_executor(), plugins, number);
                asio::co_spawn(context, member.work(person), outcomes.next(context, 1));
                context.run();
            });
        for (auto& thread : all) thread.join();
    }
    outcomes.check(several);
}

BOOST_AUTO_TEST_CASE(executors_on_strands_share_a_pool_of_threads) {
    auto plugins = test::registry();
    Outcomes outcomes;
    {
        Person person;
        asio::io_context context(several);
        std::vector<std::unique_ptr<Member>> members;
        for (int number = 0; number < several; ++number) {
            const auto strand = asio::make_strand(context);
            members.push_back(std::make_unique<Member>(strand, plugins, number));
            asio::co_spawn(strand, members.back()->work(person), outcomes.next(context, several));
        }
        std::vector<std::thread> all;
        for (int number = 0; number < several; ++number) all.emplace_back([&] { context.run(); });
        for (auto& thread : all) thread.join();
    }
    outcomes.check(several);
}

BOOST_AUTO_TEST_CASE(a_registry_is_asked_by_many_threads) {
    auto plugins = test::registry();
    std::atomic<int> made{0}, refused{0};
    std::vector<std::thread> all;
    for (int number = 0; number < 8; ++number)
        all.emplace_back([&, number] {
            asio::io_context context(1);
            Host host;
            host.executor = context.get_executor();
            for (const char* name : {"ask", "deny", "allow", "deny"})
                made += plugins.make<ApprovalPolicy>(name, host, {}) != nullptr;
            plugins.add<ApprovalPolicy>("own " + std::to_string(number),
                                        [](Host& lent, const json::object& config) {
                                            return lent.plugins->approval("deny", lent, config);
                                        });
            made +=
                plugins.make<ApprovalPolicy>("own " + std::to_string(number), host, {}) != nullptr;
            made += !plugins.list().empty() && !plugins.in_use().empty();
            try {
                plugins.make<ApprovalPolicy>("absent", host, {});
            } catch (const Error&) {
                ++refused;
            }
        });
    for (auto& thread : all) thread.join();
    BOOST_TEST(made == 48);
    BOOST_TEST(refused == 8);
}

BOOST_AUTO_TEST_CASE(a_blocking_executor_is_cancelled_from_another_thread) {
    test::TemporaryDirectory workspace;
    if (::geteuid() == 0) BOOST_REQUIRE(::chown(workspace.path().c_str(), 65534, 65534) == 0);
    CodeExecutorOptions options;
    options.python = test::kernel_python();
    options.workspace = workspace.path();
    options.kernel_init_timeout = 60s;
    BlockingCodeExecutor executor(test::registry(), options);
    executor.start();
    BOOST_TEST(executor.kernel_alive());
    std::thread other;
    const auto result =
        executor.stream("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)",
                        [&](ExecutionEvent& event) {
                            const auto* chunk = std::get_if<CodeExecutionChunk>(&event);
                            if (chunk && !other.joinable())
                                other = std::thread([&] { executor.cancel(); });
                        });
    BOOST_REQUIRE(other.joinable());
    other.join();
    BOOST_TEST((result.status == CodeExecutionResult::Status::cancelled));
    BOOST_TEST(executor.execute("6 * 7").ok_or_throw().text.value_or("") == "42");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace threads_tests
