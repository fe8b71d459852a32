// A sandbox around bubblewrap that logs what it launches.
//
//   build/ipybox run --plugin-dir build/examples/logging_sandbox --sandbox=logging --log-level
//       info -c '…'
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/wrapping_sandbox.hpp>

namespace {
using namespace ipybox;

struct Logging final : WrappingSandbox {
    explicit Logging(Host& host, const json::object& config)
        : WrappingSandbox(host.plugins->sandbox("bubblewrap", host, config)), logger(host.logger) {}

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        logger(LogLevel::info, "launches " + argv.front() + " in " + policy.cwd.string());
        return inner().launch(std::move(policy), std::move(argv), std::move(channels), stdio);
    }

    Logger logger;
};

constexpr Plugin self{
    .name = "logging",
    .summary = "example: logs what bubblewrap launches, whose configuration it takes",
    .config_schema = R"({"type": "object"})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<Sandbox> {
        return std::make_unique<Logging>(host, config);
    },
};
}  // namespace

IPYBOX_PLUGIN(logging, self)
