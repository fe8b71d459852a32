#pragma once
// Who answers what the policy asks, as the flags of `run` and `serve` say.
#include <cstdlib>
#include <iostream>
#include <ipybox/approval/channel.hpp>
#include <ipybox/approval/granted_rules.hpp>
#include <memory>
#include <string>
#include <utility>

#include "executor_flags.hpp"
#include "page/approval_page.hpp"

namespace ipybox::app {

// The channel of --approval-channel, after saying where it is; null without the flag.
inline std::unique_ptr<ApprovalChannel> open_channel(asio::any_io_executor executor,
                                                     const ExecutorFlags& flags,
                                                     const Logger& logger) {
    if (flags.channel.empty()) return nullptr;
    if (flags.sandbox == "none")
        throw Error(
            errc::bad_argument,
            "--approval-channel needs a sandbox: without one the code could approve its own calls");
    ApprovalChannelOptions settings;
    settings.approval_required = true;
    settings.approval_timeout = {};  // the executor's counts
    settings.logger = logger;
    settings.allowed_origins = flags.channel_origins;
    const char* token = std::getenv("IPYBOX_APPROVAL_TOKEN");
    if (token) settings.token = token;
    auto channel = std::make_unique<ApprovalChannel>(std::move(executor), std::move(settings));
    const auto [host, port] = host_and_port(flags.channel, "--approval-channel");
    const auto url = channel->listen(host, port);
    std::cerr << "approvers connect to " << url;
    if (!token) std::cerr << " with the bearer token " << channel->token();
    std::cerr << std::endl;
    return channel;
}

// The page of --approval-page, after saying where it is; null without the flag.
inline std::unique_ptr<ApprovalPage> open_page(asio::any_io_executor executor,
                                               const ExecutorFlags& flags,
                                               std::shared_ptr<GrantedRules> granted,
                                               Duration approval_timeout, const Logger& logger) {
    if (flags.page.empty()) return nullptr;
    const bool isolated =
        (flags.sandbox == "bubblewrap" || flags.sandbox == "srt") && flags.kernel != "gateway";
    if (!isolated && !flags.page_unconfined)
        throw Error(errc::bad_argument,
                    "--approval-page: with " +
                        (flags.kernel == "gateway" ? std::string("--kernel gateway")
                                                   : "--sandbox " + flags.sandbox) +
                        " the code may reach the page and approve its own calls; use --sandbox "
                        "bubblewrap, or say --approval-page-unconfined");
    ApprovalPageOptions settings;
    settings.note = "workspace " + flags.workspace + " · sandbox " + flags.sandbox;
    settings.granted = std::move(granted);
    settings.approval_timeout = approval_timeout;
    settings.logger = logger;
    settings.link_place = page_link_place();
    auto page = std::make_unique<ApprovalPage>(std::move(executor), std::move(settings));
    const auto [host, port] = host_and_port(flags.page, "--approval-page");
    const auto link = page->listen(host, port);
    std::cerr << "approval page: " << link << std::endl;
    return page;
}

// What --approve allow means, before anything is allowed; nothing for other answers.
inline void warn_of_allow(const ExecutorFlags& flags) {
    if (flags.approve != "allow" || flags.log_level == "off") return;
    std::string remains = flags.policy.empty() ? "" : "what " + flags.policy + " denies";
    if (flags.sandbox != "none")
        remains += (remains.empty() ? "" : ", and ") + ("sandbox " + flags.sandbox) +
                   " around the code, not around what servers do for it";
    if (remains.empty()) remains = "nothing";
    if (flags.sandbox == "none") remains += "; the code itself has your rights";
    std::cerr << "ipybox: --approve allow: every call of every tool of every server is carried "
                 "out, and nobody looks at it\n"
              << "ipybox: what remains: " << detail::printable(remains) << std::endl;
}

}  // namespace ipybox::app
