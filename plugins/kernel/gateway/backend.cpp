// IPython kernels behind a Jupyter server: on another machine, or in a sandbox of this one with a
// kernel gateway of its own. REST starts and ends them, a WebSocket carries their messages.
//
// What makes that as good as sockets of one's own is python/ipybox_kernel/link.py at the other end:
// it numbers what the kernel publishes and sends again what did not arrive (the rules are those of
// jupyter/link.hpp), and it carries the channels of a KernelSpec where no file and no socket can be
// shared.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/plugin.hpp>

#include "kernel.hpp"
#include "launch.hpp"
#include "start.hpp"

namespace ipybox::gateway {
namespace {

// Bytes of the library that go with the start; the rest follows.
constexpr std::size_t largest_start = std::size_t{1} << 20;

// Starts each through the sandbox with a gateway of its own, or on the server that `url` names.
class Gateway final : public KernelBackend {
public:
    Gateway(Host& host, const json::object& config)
        : executor_(host.executor), settings_(read_settings(config)) {
        MemoryBudget::process().ensure(3 * settings_.limits.bytes);
    }

    const std::optional<ToolListener>& tool_listener() const noexcept {
        return settings_.tool_listener;
    }

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        if (spec.policy.programs != Programs::allow)
            throw Error(errc::sandbox_refused,
                        "kernels of \"gateway\" are programs that their server starts, so that "
                        "programs cannot be denied (--no-exec, --approve-programs): use \"fork\" "
                        "or \"zmq\"");
        const auto deadline = deadline_after(spec.init_timeout);
        auto link = std::make_shared<Link>(executor_, settings_, spec.logger);
        // From here on, leaving this function in any way ends the kernel.
        auto kernel = std::make_unique<GatewayKernel>(link);
        json::object boot;
        boot["remote"] = settings_.remote;
        boot["cwd"] = settings_.cwd;
        json::array extensions;
        for (const auto& extension : spec.extensions) extensions.emplace_back(extension);
        boot["extensions"] = std::move(extensions);
        boot["channels"] = json::object();
        if (settings_.remote) {
            prepare_remote(*link, std::move(spec), boot);
        } else {
            co_await launch_gateway(sandbox, std::move(spec), link, deadline);
        }
        co_await create_kernel(link, deadline);
        co_await begin_link(link, std::move(boot), deadline);
        // What did not go with the start, because it is large.
        if (settings_.remote) co_await kernel->refresh();
        asio::co_spawn(executor_, watch_kernel(link), asio::detached);
        co_return kernel;
    }

private:
    void prepare_remote(Link& link, KernelSpec spec, json::object& boot) const {
        HttpClientOptions options;
        options.ca_file = settings_.ca_file;
        options.logger = spec.logger;
        link.server = std::make_shared<Server>(executor_, settings_, std::move(options));
        link.channels = std::move(spec.channels);
        if (const auto own = spec.policy.env.find("IPYBOX_WORKING_DIR");
            own != spec.policy.env.end())
            boot["cwd"] = own->second;
        json::object env, channels;
        for (const auto& [name, value] : spec.policy.env) env[name] = value;
        boot["env"] = std::move(env);
        boot["library"] = "";
        for (const auto& channel : link.channels) {
            // What the environment calls them; here nothing else has that place.
            const auto place = channel.host_path.string();
            if (channel.kind == Channel::Kind::socket) channels[channel.name] = place;
            if (channel.kind == Channel::Kind::directory) boot["library"] = place;
        }
        boot["channels"] = std::move(channels);
        json::object files;
        std::size_t size = 0;
        for (auto& [name, text] : GatewayKernel::changed_files(link)) {
            // Our own package is needed first.
            const bool first = name.starts_with("ipybox_kernel/");
            if (!first && size + text.size() > largest_start) {
                link.library.erase(name);
                continue;
            }
            size += text.size();
            files[name] = text;
        }
        boot["files"] = std::move(files);
    }

    asio::any_io_executor executor_;
    Settings settings_;
};

// With `url`: nothing of this machine is where the kernels are.
class DistantGateway final : public RemoteBackend {
public:
    DistantGateway(Host& host, const json::object& config) : gateway_(host, config) {}

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        return gateway_.start(sandbox, std::move(spec));
    }
    std::optional<ToolListener> tool_listener() const override { return gateway_.tool_listener(); }

private:
    Gateway gateway_;
};

constexpr Plugin descriptor{
    .name = "gateway",
    .summary =
        "IPython kernels behind a Jupyter server, kernel gateway or enterprise gateway, here or "
        "elsewhere",
    .config_schema = config_schema,
    .make = Factory<KernelBackend>(
        +[](Host& host, const json::object& config) -> std::unique_ptr<KernelBackend> {
            if (config.contains("url")) return std::make_unique<DistantGateway>(host, config);
            return std::make_unique<Gateway>(host, config);
        }),
};

}  // namespace
}  // namespace ipybox::gateway

IPYBOX_PLUGIN(gateway, ipybox::gateway::descriptor)
