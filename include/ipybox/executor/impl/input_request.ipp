#pragma once
#include <ipybox/executor/input_request.hpp>

#include <boost/asio/post.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/terminal_text.hpp>

namespace ipybox {

IPYBOX_DECL std::string InputRequest::to_string() const {
    const auto& prompt = state_->prompt;
    return detail::printable(prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1)) +
           (state_->cut ? "…" : "");
}

IPYBOX_DECL void InputRequest::settle(std::optional<std::string> text) const {
    asio::post(state_->executor, [state = state_, said = std::move(text)]() mutable {
        if (!state->open) return;
        state->settle();
        state->reply(std::move(said));
    });
}

}  // namespace ipybox
