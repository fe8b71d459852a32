// What an executor asks of kernels here and elsewhere, with backends that start nothing.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/remote_kernel.hpp>

#include "test_support.hpp"

namespace remote_kernel_tests {

using namespace ipybox;

namespace {
// What the executor asked for, in order.
std::string asked;
bool stale = true;

// Enforces nothing, as kernels elsewhere want it.
class NoSandbox final : public Sandbox {
public:
    awaitable<Capabilities> probe() override {
        Capabilities nothing;
        nothing.available = true;
        co_return nothing;
    }
    std::string guest_address(const SandboxPolicy&, const Channel& channel) const override {
        return channel.host_path.string();
    }
    uid_t guest_user(const SandboxPolicy&) const override { return ::geteuid(); }
    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy, std::vector<std::string>,
                                                        std::vector<Channel>, Stdio) override {
        throw Error(errc::sandbox_refused, "nothing is launched here");
        co_return nullptr;
    }
};

class FakeProcess final : public SandboxedProcess {
public:
    pid_t pid() const noexcept override { return -1; }
    std::optional<ExitStatus> exit_status() const noexcept override { return std::nullopt; }
    awaitable<std::optional<ExitStatus>> wait(Clock::time_point) override {
        co_return std::nullopt;
    }
    asio::writable_pipe& input() override { throw Error(errc::bad_argument, "no pipe"); }
    asio::readable_pipe& output() override { throw Error(errc::bad_argument, "no pipe"); }
    std::string output_tail() const override { return {}; }
    Statistics statistics() const noexcept override { return {}; }
    std::vector<Violation> violations() const override { return {{"cpu", "too much"}}; }
    awaitable<void> refresh_view() override {
        asked += "refresh_view ";
        co_return;
    }
    bool may_be_stale() const noexcept override { return stale; }
    void interrupt() noexcept override {}
    void signal(int) noexcept override {}
    void kill_tree() noexcept override {}
};

// Base: Kernel or RemoteKernel.
template <class Base>
class FakeKernel : public Base {
public:
    ~FakeKernel() override { asked += "gone "; }
    awaitable<void> execute(ExecuteRequest request) override {
        asked += request.code + ' ';
        co_return;
    }
    awaitable<std::optional<KernelOutput>> next(Clock::time_point) override { co_return Done(); }
    awaitable<void> interrupt() override { co_return; }
    awaitable<void> shutdown() override { co_return; }
    bool alive() const noexcept override { return true; }
    std::shared_ptr<SandboxedProcess> process() const override { return process_; }

protected:
    std::shared_ptr<SandboxedProcess> process_ = std::make_shared<FakeProcess>();
};

class FakeRemoteKernel final : public FakeKernel<RemoteKernel> {
public:
    FakeRemoteKernel() { process_.reset(); }
    std::string id() const override { return "k1"; }
    awaitable<void> refresh() override { co_return; }
    awaitable<void> write_file(std::filesystem::path path, std::string bytes, bool) override {
        asked += "write " + path.string() + '=' + bytes + ' ';
        co_return;
    }
    awaitable<FilePart> read_file(std::filesystem::path path, std::uint64_t offset,
                                  std::size_t limit) override {
        asked += "read " + path.string() + ':' + std::to_string(offset) + '+' +
                 std::to_string(limit) + ' ';
        co_return FilePart{};
    }
};

template <class Base, class Started>
class Backend final : public Base {
public:
    awaitable<std::unique_ptr<Kernel>> start(Sandbox&, KernelSpec spec) override {
        asked += spec.python.empty() ? "elsewhere " : "here ";
        for (const auto& network : spec.policy.network.private_networks) asked += network + ' ';
        co_return std::make_unique<Started>();
    }
};

template <class Made>
constexpr Plugin backend(std::string_view name) {
    return {.name = name,
            .summary = "test",
            .config_schema = "{}",
            .make = Factory<KernelBackend>(
                +[](Host&, const json::object&) -> std::unique_ptr<KernelBackend> {
                    return std::make_unique<Made>();
                })};
}
constexpr Plugin none{
    .name = "none",
    .summary = "test",
    .config_schema = "{}",
    .make = Factory<Sandbox>(+[](Host&, const json::object&) -> std::unique_ptr<Sandbox> {
        return std::make_unique<NoSandbox>();
    }),
};
constexpr Plugin here = backend<Backend<KernelBackend, FakeKernel<Kernel>>>("here");
constexpr Plugin elsewhere = backend<Backend<RemoteBackend, FakeRemoteKernel>>("elsewhere");
constexpr Plugin broken = backend<Backend<RemoteBackend, FakeKernel<Kernel>>>("broken");

class AllowAll final : public ApprovalPolicy {
public:
    awaitable<Decision> decide(ToolCall) override { co_return Decision(Verdict::allow); }
};

struct Fixture {
    Fixture() {
        asked.clear();
        stale = true;
        for (const auto* plugin : {&none, &here, &elsewhere, &broken})
            plugins.add(*plugin, "this test");
        options.sandbox = "none";
        options.workspace = workspace.path();
        options.make_policy = [](Host&) { return std::make_unique<AllowAll>(); };
    }
    void make(const char* kernel) {
        options.kernel = kernel;
        executor = std::make_unique<CodeExecutor>(context.get_executor(), plugins, options);
    }
    template <class T>
    T run(awaitable<T> work) {
        return test::run(context, std::move(work));
    }

    asio::io_context context{1};
    PluginRegistry plugins;
    test::TemporaryDirectory workspace;
    CodeExecutorOptions options;
    std::unique_ptr<CodeExecutor> executor;
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(remote_kernel, Fixture)

BOOST_AUTO_TEST_CASE(the_view_is_refreshed_before_each_cell) {
    options.python = test::kernel_python();
    make("here");
    run(executor->start());
    BOOST_TEST(executor->shares_files());
    BOOST_TEST(executor->kernel_id() == "");
    const auto first = run(executor->execute("one"));
    BOOST_TEST_REQUIRE(first.violations.size() == 1u);
    BOOST_TEST(first.violations[0].what == "too much");
    BOOST_TEST(run(executor->execute("two")).violations.empty());
    BOOST_TEST(asked == "here refresh_view one refresh_view two ");
    // What is never stale costs nothing.
    stale = false;
    BOOST_TEST(run(executor->execute("three")).ok());
    BOOST_TEST(asked == "here refresh_view one refresh_view two three ");
}

BOOST_AUTO_TEST_CASE(private_networks_of_the_sandbox_come_with_the_policy) {
    options.python = test::kernel_python();
    options.sandbox_options["private_networks"] = json::array{"10.1.0.0/16", "fd00:1::/32"};
    make("here");
    run(executor->start());
    BOOST_TEST(asked == "here 10.1.0.0/16 fd00:1::/32 ");
}

BOOST_AUTO_TEST_CASE(kernels_elsewhere_carry_files_themselves) {
    make("elsewhere");
    BOOST_TEST(!executor->shares_files());
    BOOST_TEST(executor->kernel_id() == "");
    BOOST_CHECK_EXCEPTION(run(executor->upload("early", "x")), Error,
                          [](const Error& error) { return error.code() == errc::kernel_died; });
    run(executor->start());
    BOOST_TEST(executor->kernel_id() == "k1");
    run(executor->upload("a/b", "bytes"));
    run(executor->download("a/b", 2, 3));
    BOOST_TEST(run(executor->execute("one")).ok());
    BOOST_TEST(asked == "elsewhere write a/b=bytes read a/b:2+3 one ");
    BOOST_TEST(!std::filesystem::exists(workspace.path() / "a"));
}

BOOST_AUTO_TEST_CASE(a_remote_backend_starts_remote_kernels_or_none) {
    make("broken");
    BOOST_TEST(!executor->shares_files());
    for (int attempt = 0; attempt < 2; ++attempt)
        BOOST_CHECK_EXCEPTION(run(executor->start()), Error, [](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::bad_plugin &&
                   error.detail().find("RemoteKernel") != std::string::npos;
        });
    BOOST_TEST(asked == "elsewhere gone elsewhere gone ");
    BOOST_TEST(!executor->kernel_alive());
    BOOST_CHECK_EXCEPTION(run(executor->execute("1")), Error,
                          [](const Error& error) { return error.code() == errc::kernel_died; });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace remote_kernel_tests
