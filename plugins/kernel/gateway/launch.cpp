#include "launch.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/sandbox_kit/process.hpp>

namespace ipybox::gateway {
namespace {
using namespace std::chrono_literals;

// How often a gateway that starts is looked for.
constexpr Duration look_again = 20ms;

awaitable<void> watch_process(LinkPtr link, std::shared_ptr<SandboxedProcess> process) {
    co_await process->wait(never);
    process.reset();  // with the last reference, what the sandbox made goes
    link->exited = true;
    if (!link->closed && link->delivery.linked()) link->end_dead("its gateway ended");
    link->changed.notify();
}

awaitable<void> find_gateway(LinkPtr link, uid_t guest, Clock::time_point deadline) {
    for (;;) {
        auto found = link->relayed ? detail::open_socket(*link->relayed, "gateway", ::geteuid())
                                   : detail::open_socket(*link->directory, "gateway", guest);
        if (found) {
            link->gateway_socket = std::move(found);
            co_return;
        }
        require_start(*link, deadline);
        const auto again = Clock::now() + look_again;
        co_await link->changed.wait(again);
        co_await throw_if_cancelled();
    }
}

// Returns when it answers requests.
awaitable<void> reach_gateway(LinkPtr link, Clock::time_point deadline) {
    HttpClientOptions options;
    options.unix_socket = "/proc/self/fd/" + std::to_string(link->gateway_socket.get());
    options.logger = link->logger;
    link->server = std::make_shared<Server>(link->executor, link->settings, std::move(options));
    for (;;) {
        require_start(*link, deadline);
        bool answers = false;
        try {
            const auto soon = std::min(deadline, Clock::now() + 5s);
            const Answer answer =
                co_await Server::call(link->server, "GET", "/api", std::string(), soon);
            answers = answer.status == 200;
        } catch (const Error&) {
            // It does not listen yet.
        }
        if (answers) co_return;
        const auto again = Clock::now() + look_again;
        co_await link->changed.wait(again);
        co_await throw_if_cancelled();
    }
}

// What the gateway and its kernel find in their environment. files: where they may write.
void set_environment(std::map<std::string, std::string>& env, const std::filesystem::path& files,
                     const Settings& settings) {
    env.try_emplace("IPYTHONDIR", files / "ipython");
    env.try_emplace("JUPYTER_RUNTIME_DIR", files / "jupyter-runtime");
    env.try_emplace("JUPYTER_CONFIG_DIR", files / "jupyter-config");
    env.try_emplace("JUPYTER_DATA_DIR", files / "jupyter-data");
    if (!env.contains("HOME")) env.try_emplace("MPLCONFIGDIR", files / "matplotlib");
    env.try_emplace("TERM", "dumb");
    env.try_emplace("NO_COLOR", "1");
    const std::string_view scheme = "token ";
    env["IPYBOX_GATEWAY_TOKEN"] =
        find_header(settings.headers, "Authorization").substr(scheme.size());
}

// address: where the gateway listens, as the sandbox's inside has it.
std::vector<std::string> command_line(const KernelSpec& spec, const std::string& address,
                                      const Settings& settings) {
    std::vector<std::string> argv = {
        spec.python.string(), "-c", jupyter::gateway_start, "--listen", address, "--log-level=WARN",
        "--ZMQChannelsWebsocketConnection.limit_rate=False",
        // How soon the end of a kernel is noticed, in seconds.
        "--KernelRestarter.time_to_dead=0.3", "--KernelManager.shutdown_wait_time=1.0"};
    argv.insert(argv.end(), settings.gateway_options.begin(), settings.gateway_options.end());
    return argv;
}

}  // namespace

awaitable<void> launch_gateway(Sandbox& sandbox, KernelSpec spec, LinkPtr link,
                               Clock::time_point deadline) {
    if (!find_program(spec.python.string(), "", Trust::named))
        throw Error(errc::missing_dependency,
                    "there is no Python interpreter at " + spec.python.string() +
                        "; name one that has ipykernel and jupyter_kernel_gateway");
    const uid_t guest_uid = sandbox.guest_user(spec.policy);
    link->directory.emplace(guest_uid, guest_uid);
    Channel channel;
    channel.name = "kernel";
    channel.host_path = link->directory->path();
    const auto able = co_await sandbox.probe();
    // What fills the sandbox's own scratch space fills no disk of the host's.
    const bool scratch = able.scratch_size;
    channel.access = scratch ? Channel::Access::sockets : Channel::Access::write;
    const std::filesystem::path guest = sandbox.guest_address(spec.policy, channel);
    auto channels = std::move(spec.channels);
    channels.push_back(std::move(channel));
    std::string address = guest / "gateway";
    if (!sandbox.unix_sockets(spec.policy)) {
        link->relayed.emplace(::geteuid(), ::geteuid());
        Channel listener;
        listener.name = "gateway";
        listener.host_path = link->relayed->path() / "gateway";
        listener.kind = Channel::Kind::listener;
        address = sandbox.guest_address(spec.policy, listener);
        channels.push_back(std::move(listener));
    }
    set_environment(spec.policy.env, scratch ? "/dev/shm" : guest, link->settings);
    auto argv = command_line(spec, address, link->settings);
    link->process = co_await sandbox.launch(std::move(spec.policy), std::move(argv),
                                            std::move(channels), Stdio::tail);
    asio::co_spawn(link->executor, watch_process(link, link->process), asio::detached);
    co_await find_gateway(link, guest_uid, deadline);
    co_await reach_gateway(link, deadline);
    // Its socket has served by name; elsewhere its files are there, too.
    if (scratch) link->directory->seal();
}

void require_start(const Link& link, Clock::time_point deadline) {
    link.require_usable();
    if (link.exited) {
        const auto tail = link.tail_text();
        if (tail.find("needs jupyter_kernel_gateway") != std::string::npos)
            throw Error(errc::missing_dependency,
                        "the Python interpreter has no jupyter_kernel_gateway; install it with "
                        "`python -m pip install jupyter_kernel_gateway`" +
                            tail);
        throw Error(errc::kernel_start_failed, "the kernel gateway ended while it started" + tail);
    }
    if (Clock::now() >= deadline)
        throw Error(errc::timed_out,
                    "the kernel did not start in time; raise kernel_init_timeout, or see why it is "
                    "slow" +
                        link.tail_text());
}

}  // namespace ipybox::gateway
