// A kernel backend around another one: its kernels may take their time to start.
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

struct PatientZmq final : KernelBackend {
    PatientZmq(Host& host, const json::object& config)
        : inner(host.plugins->kernel("zmq", host, config)), logger(host.logger) {}

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        spec.init_timeout = std::chrono::minutes(2);
        logger(LogLevel::info,
               "a kernel with " + std::to_string(spec.channels.size()) + " channels");
        return inner->start(sandbox, std::move(spec));
    }
    bool takes_input() const noexcept override { return inner->takes_input(); }

    std::unique_ptr<KernelBackend> inner;
    Logger logger;
};

constexpr Plugin self{
    .name = "patient_zmq",
    .summary = "kernels of zmq that may start slowly",
    .config_schema = R"({"type": "object"})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<KernelBackend> {
        return std::make_unique<PatientZmq>(host, config);
    },
};
}  // namespace

IPYBOX_PLUGIN(patient_zmq, self)
