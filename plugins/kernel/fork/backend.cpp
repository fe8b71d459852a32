// IPython kernels of ipybox's own, without ipykernel and ZeroMQ: forked from a warm Python process
// into a sandbox each, where that can be done; started one by one elsewhere.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/detail/private_directory.hpp>
#include <ipybox/net/private_listener.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/start_failure.hpp>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <utility>

#include "kernel.hpp"
#include "preload.hpp"
#include "zygote.hpp"

namespace {
using namespace ipybox;
using namespace ipybox::forked;
using namespace std::chrono_literals;

// First the working directory goes from the path: modules that code has left there must not run.
constexpr const char* runner =
    "import sys; sys.path = [p for p in sys.path if p]; from ipybox_kernel.runner import main; "
    "main()";

// ---- warm processes -----------------------------------------------------------------------------

// All of this process, by the io_context that they belong to. They live as long as somebody uses
// them.
class ZygotePool {
public:
    using Key = std::pair<const asio::execution_context*, std::string>;

    static ZygotePool& process() {
        static ZygotePool pool;
        return pool;
    }
    std::shared_ptr<Zygote> find(const Key& key) {
        const std::scoped_lock lock(mutex_);
        std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
        const auto found = known_.find(key);
        return found == known_.end() ? nullptr : found->second.lock();
    }
    void keep(const Key& key, const std::shared_ptr<Zygote>& zygote) {
        const std::scoped_lock lock(mutex_);
        known_[key] = zygote;
    }
    // Why none of these can be had, once that was seen; empty before.
    std::string problem(const Key& key) {
        const std::scoped_lock lock(mutex_);
        const auto found = problems_.find(key.second);
        return found == problems_.end() ? std::string() : found->second;
    }
    void give_up(const Key& key, const std::string& problem) {
        const std::scoped_lock lock(mutex_);
        problems_[key.second] = problem;
    }

private:
    std::mutex mutex_;
    std::map<Key, std::weak_ptr<Zygote>> known_;
    std::map<std::string, std::string> problems_;
};

// ---- starting -----------------------------------------------------------------------------------

void assign(KernelLink& link, UniqueFd socket) {
    link.socket.assign(asio::local::stream_protocol(), socket.release());
    link.socket.non_blocking(true);
}

// What a kernel is told before anything else. env: null leaves it the one that it has.
void introduce(KernelLink& link, const KernelSpec& spec,
               const std::map<std::string, std::string>* env) {
    json::object first;
    json::array extensions;
    if (env != nullptr) {
        json::object variables;
        for (const auto& [name, value] : *env) variables[name] = value;
        first["env"] = std::move(variables);
    } else {
        first["env"] = nullptr;
    }
    for (const auto& name : spec.extensions) extensions.emplace_back(name);
    first["extensions"] = std::move(extensions);
    first["allow_input"] = spec.allow_input;
    link.takes_input = spec.allow_input;
    link.send('i', detail::write_json_bytes(first));
}

// The kernel ended before it was there.
awaitable<void> report_failed_start(LinkPtr link) {
    const auto how = co_await link->ending();
    const auto tail = link->tail_text();
    if (tail.find("No module named 'IPython") != std::string::npos)
        link->fail(errc::missing_dependency,
                   "the Python interpreter has no IPython (pip install ipykernel); "
                   "`ipybox doctor` says how to get it here" +
                       tail);
    link->fail(errc::kernel_start_failed, sandbox_kit::start_failure(how, tail));
}

[[noreturn]] void report_slow_start(const LinkPtr& link) {
    link->fail(errc::timed_out,
               "the kernel did not start in time; raise kernel_init_timeout, or see why it is "
               "slow" +
                   link->tail_text());
}

// Its hello ends the start.
awaitable<void> greet(LinkPtr link, Clock::time_point deadline) {
    while (!link->greeted) {
        link->require_usable();
        if (link->read_one()) continue;
        if (link->is_over()) co_await report_failed_start(link);
        if (Clock::now() >= deadline) report_slow_start(link);
        co_await link->wait_for_frames(deadline);
    }
}

struct Settings {
    std::vector<std::string> preload = default_preload();
    enum class Start { automatic, warm, forked, cold } start = Start::automatic;
    std::size_t spares = 0;
    Duration keep_warm{};
    jupyter::WireLimits limits;
};

// Ends a kernel whose start is left in any way but by its success.
struct Unfinished {
    LinkPtr link;
    ~Unfinished() {
        if (link) link->close();
    }
};

// Opens the sandbox and has the zygote fork into it.
awaitable<LinkPtr> start_forked(asio::any_io_executor executor, Sandbox* sandbox, KernelSpec spec,
                                std::shared_ptr<Zygote> zygote, Settings settings) {
    const auto deadline = deadline_after(spec.init_timeout);
    Unfinished start{std::make_shared<KernelLink>(executor, settings.limits)};
    auto& link = *start.link;
    auto policy = spec.policy;
    // A fork has what the zygote has mapped.
    if (policy.limits.memory_per_process)
        *policy.limits.memory_per_process += zygote->address_space();
    const bool counted = policy.limits.memory_total.has_value();
    const bool last_program = policy.programs != Programs::allow;
    auto opened = co_await sandbox->open(std::move(policy), spec.channels, zygote->pen());
    auto entered = std::make_shared<Entered>(executor, std::move(opened.process), counted);
    // Its own, those of the sandbox, and the one that comes with these words.
    if (const auto inherited = zygote->filters(); last_program && inherited)
        entered->expect_filters(*inherited + static_cast<unsigned>(opened.filters.size()) + 1);
    link.entered = entered;
    link.process = entered;
    link.keeps = zygote;
    ForkRequest request;
    UniqueFd ours;
    std::tie(ours, request.link) = sandbox_kit::make_socket_pair(SOCK_STREAM);
    for (const std::size_t stream : {0u, 1u}) {
        auto& reading = request.pipes[2 * stream];
        std::tie(reading, request.pipes[2 * stream + 1]) = sandbox_kit::make_pipe();
        link.pipes[stream].reset(::fcntl(reading.get(), F_DUPFD_CLOEXEC, 3));
    }
    request.sandbox = &opened;
    if (opened.door) {
        request.interpreter = spec.python.string();
        std::tie(request.workers[0], request.workers[1]) =
            sandbox_kit::make_socket_pair(SOCK_STREAM);
        opened.env["IPYBOX_PROGRAM_DOORS"] = "6:7";
    }
    assign(link, std::move(ours));
    introduce(link, spec, &opened.env);
    co_await zygote->fork(std::move(request), entered);
    entered->is_below(std::move(opened.init));
    link.watch_process(UniqueFd(::fcntl(entered->handle().get(), F_DUPFD_CLOEXEC, 3)));
    co_await greet(start.link, deadline);
    co_return std::exchange(start.link, nullptr);
}

awaitable<void> accept_kernel(asio::local::stream_protocol::acceptor* acceptor, LinkPtr link) {
    auto [error, socket] = co_await acceptor->async_accept(as_result);
    if (!error) link->socket = std::move(socket);
}

awaitable<void> wait_for_end(LinkPtr link, Clock::time_point deadline) {
    while (!link->look_for_exit() && Clock::now() < deadline) co_await link->changed.wait(deadline);
}

// Starts Python in the sandbox, which connects to us.
awaitable<LinkPtr> start_cold(asio::any_io_executor executor, Sandbox* sandbox, KernelSpec spec,
                              Settings settings) {
    const auto deadline = deadline_after(spec.init_timeout);
    if (!find_program(spec.python.string(), "", Trust::named))
        throw Error(errc::missing_dependency, "there is no Python interpreter at " +
                                                  spec.python.string() +
                                                  "; name one that has IPython");
    Unfinished start{std::make_shared<KernelLink>(executor, settings.limits)};
    auto& link = *start.link;
    const auto guest = sandbox->guest_user(spec.policy);
    const detail::PrivateDirectory directory(guest, guest);
    Channel channel;
    channel.name = "kernel";
    channel.host_path = directory.path() / "kernel";
    channel.kind = Channel::Kind::socket;
    asio::local::stream_protocol::acceptor acceptor(executor);
    net::listen_privately(acceptor, channel.host_path, guest, "the kernel's link");
    const auto able = co_await sandbox->probe();
    auto& env = spec.policy.env;
    env["IPYBOX_KERNEL_LINK"] = sandbox->guest_address(spec.policy, channel);
    if (able.scratch_size) env.try_emplace("IPYTHONDIR", "/dev/shm/ipython");
    std::vector<std::string> argv = {spec.python.string(), "-c", runner};
    auto channels = spec.channels;
    channels.push_back(std::move(channel));
    link.process =
        co_await sandbox->launch(spec.policy, std::move(argv), std::move(channels), Stdio::tail);
    const auto pid = link.process->pid();
    link.watch_process(pid > 0 ? sandbox_kit::open_pidfd(pid) : UniqueFd());
    const bool accepted = co_await ends_first(accept_kernel(&acceptor, start.link),
                                              wait_for_end(start.link, deadline));
    if (!accepted || !link.socket.is_open()) {
        if (link.look_for_exit()) co_await report_failed_start(start.link);
        report_slow_start(start.link);
    }
    link.socket.non_blocking(true);
    introduce(link, spec, nullptr);
    co_await greet(start.link, deadline);
    co_return std::exchange(start.link, nullptr);
}

// ---- the backend --------------------------------------------------------------------------------

// Everything that tells two kernels apart before they run code.
using Wishes = std::tuple<std::filesystem::path, std::vector<std::filesystem::path>, SandboxPolicy,
                          std::vector<Channel>, std::vector<std::string>, bool>;
auto wishes_of(const KernelSpec& spec) {
    return std::tie(spec.python, spec.interpreter, spec.policy, spec.channels, spec.extensions,
                    spec.allow_input);
}

// Whether a kernel may wait: its time would run, and its way to the network would be closed by the
// next one's.
bool may_wait(const SandboxPolicy& policy) {
    return !policy.limits.wall_seconds && policy.network.mode != NetworkPolicy::Mode::allow_list;
}

class Fork final : public KernelBackend {
public:
    Fork(Host& host, const json::object& config) : executor_(host.executor), logger_(host.logger) {
        if (const auto* bytes = config.if_contains("max_message_bytes"))
            settings_.limits.bytes = bytes->to_number<std::size_t>();
        settings_.limits.decoded = std::max(settings_.limits.decoded, 3 * settings_.limits.bytes);
        MemoryBudget::process().ensure(2 * settings_.limits.bytes);
        if (const auto* modules = config.if_contains("preload")) {
            settings_.preload.clear();
            for (const auto& name : modules->get_array())
                settings_.preload.emplace_back(name.get_string());
        }
        if (const auto* how = config.if_contains("start"))
            settings_.start = how->get_string() == "forked" ? Settings::Start::forked
                              : how->get_string() == "warm" ? Settings::Start::warm
                              : how->get_string() == "cold" ? Settings::Start::cold
                                                            : Settings::Start::automatic;
        if (const auto* fresh = config.if_contains("fresh_layout"); fresh && fresh->get_bool())
            settings_.start = Settings::Start::cold;
        if (const auto* count = config.if_contains("spares"))
            settings_.spares = count->to_number<std::size_t>();
        if (const auto* time = config.if_contains("keep_warm"))
            settings_.keep_warm = std::chrono::seconds(time->to_number<int>());
    }
    ~Fork() override {
        if (zygote_ && settings_.keep_warm > Duration::zero()) zygote_->linger(settings_.keep_warm);
    }
    bool takes_input() const noexcept override { return true; }
    void release_spares() noexcept override {
        shelf_->wanted.reset();
        shelf_->ready.clear();
    }

    awaitable<std::unique_ptr<Kernel>> start(Sandbox& sandbox, KernelSpec spec) override {
        auto kernel = take_spare(spec);
        if (!kernel) kernel = make_kernel(co_await start_link(&sandbox, spec), spec);
        if (settings_.spares > 0) fill_shelf(sandbox, std::move(spec));
        co_return kernel;
    }

private:
    // Kernels that wait for the next start().
    struct Shelf {
        bool is_for(const KernelSpec& spec) const { return wanted && *wanted == wishes_of(spec); }

        std::optional<Wishes> wanted;
        std::vector<std::unique_ptr<ForkKernel>> ready;
        bool filling = false;
    };

    // While it says goodbye, the one that is likely to follow gets up.
    std::unique_ptr<ForkKernel> make_kernel(LinkPtr link, const KernelSpec& spec) {
        return std::make_unique<ForkKernel>(std::move(link), spec.owner,
                                            [shelf = std::weak_ptr<Shelf>(shelf_)] {
                                                const auto kept = shelf.lock();
                                                if (kept && !kept->ready.empty())
                                                    kept->ready.back()->wake();
                                            });
    }

    std::unique_ptr<ForkKernel> take_spare(const KernelSpec& spec) {
        if (!shelf_->is_for(spec)) shelf_->ready.clear();
        while (!shelf_->ready.empty()) {
            auto kernel = std::move(shelf_->ready.back());
            shelf_->ready.pop_back();
            if (kernel->alive()) return kernel;
        }
        return nullptr;
    }

    // In the background. What it uses is held by the specification.
    void fill_shelf(Sandbox& sandbox, KernelSpec spec) {
        if (!spec.owner || !may_wait(spec.policy)) return;
        if (!shelf_->is_for(spec)) shelf_->wanted = wishes_of(spec);
        if (std::exchange(shelf_->filling, true)) return;
        asio::co_spawn(executor_, fill(&sandbox, std::move(spec)), asio::detached);
    }

    // A first cell copies the pages that the next ones only use.
    static awaitable<void> touch(Kernel& kernel) {
        ExecuteRequest nothing;
        nothing.code = "get_ipython().run.rehearse()";
        nothing.silent = true;
        co_await kernel.execute(std::move(nothing));
        for (bool done = false; !done;) {
            const auto output = co_await kernel.next(never);
            done = output && std::holds_alternative<Done>(*output);
        }
    }

    awaitable<void> fill(Sandbox* sandbox, KernelSpec spec) {
        // Whoever has just got a kernel goes first: opening a sandbox takes milliseconds of this
        // thread.
        co_await sleep_until(Clock::now() + 20ms);
        try {
            while (shelf_->is_for(spec) && shelf_->ready.size() < settings_.spares) {
                auto kernel = make_kernel(co_await start_link(sandbox, spec), spec);
                co_await touch(*kernel);
                if (shelf_->is_for(spec)) shelf_->ready.push_back(std::move(kernel));
            }
        } catch (const std::exception& error) {
            if (shelf_->is_for(spec))
                logger_(LogLevel::warning,
                        std::string("no spare kernel could be started: ") + error.what());
        }
        shelf_->filling = false;
    }

    awaitable<LinkPtr> start_link(Sandbox* sandbox, KernelSpec spec) {
        using Start = Settings::Start;
        // Looked at once: these are many directories.
        const auto packages = package_directories(spec);
        std::string why = settings_.start == Start::cold ? "the options say so"
                          : !refused_.empty()            ? refused_
                                                         : unfit(*sandbox, spec, packages);
        const bool must = settings_.start == Start::forked;
        for (int attempt = 0; why.empty() && attempt < 2; ++attempt) {
            const auto zygote = co_await warm(sandbox, spec, packages,
                                              must || settings_.start == Start::warm, &why);
            if (!zygote) break;
            const auto library = library_address(*sandbox, spec);
            if (const auto module = shadowed(spec, library, zygote->modules()); !module.empty()) {
                why = "the kernel's own path has " + module + ", which is loaded already";
                break;
            }
            try {
                co_return co_await start_forked(executor_, sandbox, spec, zygote, settings_);
            } catch (const Error& error) {
                // A zygote that is of no use any more is replaced, and this tried once more.
                if (zygote->state() == Zygote::State::failed) {
                    logger_(LogLevel::warning,
                            "a warm Python process was replaced: " + zygote->problem());
                    continue;
                }
                if (must || error.code() != errc::sandbox_refused) throw;
                // Not for others: a session's own places may be in the way.
                why = refused_ = error.detail();
            }
        }
        if (must)
            throw Error(errc::kernel_start_failed,
                        "the kernel cannot be forked (" +
                            (why.empty() ? "its process ended twice" : why) +
                            "); with the option start \"auto\" it is started on its own");
        if (!why.empty())
            logger_(LogLevel::info, "the kernel is started on its own, not forked: " + why);
        co_return co_await start_cold(executor_, sandbox, std::move(spec), settings_);
    }

    static std::string library_address(const Sandbox& sandbox, const KernelSpec& spec) {
        for (const auto& channel : spec.channels)
            if (channel.name == "lib") return sandbox.guest_address(spec.policy, channel);
        return {};
    }

    // A zygote that is ready. Null, with a reason, when there is none; without, when there will be.
    awaitable<std::shared_ptr<Zygote>> warm(Sandbox* sandbox, KernelSpec spec,
                                            std::vector<std::filesystem::path> packages, bool wait,
                                            std::string* why) {
        auto& pool = ZygotePool::process();
        std::string problem;
        for (int started = 0; started < 3;) {
            const ZygotePool::Key place{&executor_.context(),
                                        zygote_key(*sandbox, spec, packages, settings_.preload)};
            if (*why = pool.problem(place); !why->empty()) co_return nullptr;
            auto zygote = pool.find(place);
            if (zygote && zygote->state() == Zygote::State::failed) {
                problem = zygote->problem();
                if (leave_out(*zygote)) continue;  // another list, another place
                if (++failures_ > 2) {
                    pool.give_up(place, problem);
                    continue;
                }
                zygote.reset();
            }
            if (!zygote) {
                ++started;
                zygote = std::make_shared<Zygote>(executor_, logger_);
                try {
                    co_await zygote->start(*sandbox, spec, settings_.preload);
                } catch (const Error& error) {
                    pool.give_up(place, error.detail());
                    continue;
                }
                pool.keep(place, zygote);
            }
            zygote_ = zygote;
            if (wait) co_await zygote->settle(deadline_after(30s));
            if (zygote->state() == Zygote::State::ready) co_return zygote;
            if (zygote->state() == Zygote::State::starting) co_return nullptr;
        }
        *why = "no warm process comes up: " + problem;
        co_return nullptr;
    }

    // Takes what a zygote could not have loaded off the list; false when that is nothing.
    bool leave_out(const Zygote& failed) {
        bool found = false;
        for (const auto& name : failed.culprits()) {
            const auto before = settings_.preload.size();
            std::erase_if(settings_.preload, [&](const auto& module) {
                return module == name || module.starts_with(name + ".");
            });
            if (settings_.preload.size() == before) continue;
            found = true;
            logger_(LogLevel::warning, "module " + name + " is not preloaded: " + failed.problem());
        }
        return found;
    }

    asio::any_io_executor executor_;
    Logger logger_;
    Settings settings_;
    std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
    std::shared_ptr<Zygote> zygote_;  // the newest, so that it stays for the next start
    int failures_ = 0;
    std::string refused_;  // why a sandbox of this session could not be entered, once that was seen
};

constexpr std::string_view config_schema = R"({
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "preload": {
      "type": "array", "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*$"},
      "description": "modules that the warm process loads, as far as they are installed; IPython, matplotlib.pyplot, numpy, pandas and pydantic without this"
    },
    "start": {
      "enum": ["auto", "warm", "forked", "cold"], "default": "auto",
      "description": "auto: forked from the warm process as soon as that is ready, where that can be; warm: the same, and the first kernel waits for it; forked: always, or an error; cold: each kernel on its own"
    },
    "fresh_layout": {
      "type": "boolean", "default": false,
      "description": "each kernel has addresses and a hash seed of its own: it is started cold"
    },
    "spares": {
      "type": "integer", "minimum": 0, "maximum": 64, "default": 0,
      "description": "kernels of the session that are kept ready for the next start or reset"
    },
    "keep_warm": {
      "type": "integer", "minimum": 0, "maximum": 86400, "default": 0,
      "description": "seconds that the warm process stays after the last session that uses it, for sessions to come"
    },
    "max_message_bytes": {
      "type": "integer", "minimum": 1048576, "maximum": 2147483647, "default": 33554432,
      "description": "Largest message taken from the kernel, a plot or another display, in bytes."
    }
  }
})";

constexpr Plugin self{
    .name = "fork",
    .summary = "IPython kernels forked from a warm process, in milliseconds; no Jupyter clients",
    .config_schema = config_schema,
    .make = Factory<KernelBackend>(
        +[](Host& host, const json::object& config) -> std::unique_ptr<KernelBackend> {
            return std::make_unique<Fork>(host, config);
        }),
};
}  // namespace

IPYBOX_PLUGIN(fork, self)
