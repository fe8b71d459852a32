// A sandbox of your own: no namespaces, so that it works where containers forbid them. By ipybox's
// launcher and Landlock the guest writes nothing but its workspace; it reads what its user can, and
// has the network. What probe() does not claim is refused before launch() is called.
//
//   IPYBOX_PLUGIN_PATH=build/examples/custom_sandbox build/ipybox run --sandbox landlock -c '…'
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/launcher.hpp>

namespace {
using namespace ipybox;

class Landlock final : public Sandbox {
public:
    explicit Landlock(Host& host) : executor_(host.executor) {}

    awaitable<Capabilities> probe() override { co_return launched_capabilities(); }

    // Files are where they are.
    std::string guest_address(const SandboxPolicy&, const Channel& channel) const override {
        return channel.host_path;
    }

    // Nothing runs as root.
    uid_t guest_user(const SandboxPolicy& policy) const override { return launched_user(policy); }

    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        const auto launcher = find_launcher();
        co_return launched(executor_, launcher, std::move(policy), std::move(argv), channels,
                           stdio);
    }

private:
    asio::any_io_executor executor_;
};

constexpr Plugin self{
    .name = "landlock",
    .summary = "example: writes only its workspace, by Landlock, without namespaces",
    .config_schema = R"({"type": "object", "additionalProperties": false})",
    .make = Factory<Sandbox>(+[](Host& host, const json::object&) -> std::unique_ptr<Sandbox> {
        return std::make_unique<Landlock>(host);
    }),
};
}  // namespace

IPYBOX_PLUGIN(landlock, self)
