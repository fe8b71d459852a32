#pragma once
// What the approval page knows: cells with their output, calls that wait, calls that were decided.
// Events for the page come out as JSON. No sockets, no clock of its own: `now` is milliseconds
// since 1970.
#include <cstdint>
#include <deque>
#include <functional>
#include <ipybox/approval_policy.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ipybox::app {

// Beyond these the oldest goes: from the page, never from what the agent gets.
struct JournalLimits {
    std::size_t calls = 500;
    std::size_t calls_memory = std::size_t{16} << 20;  // bytes of their arguments
    std::size_t cells = 50;
    std::size_t cell_text = std::size_t{256} << 10;  // bytes of one cell's output
    std::size_t images = std::size_t{32} << 20;      // bytes of all cells' images
    std::size_t burst = std::size_t{64} << 10;       // bytes of text that are told at once
};

class PageJournal {
public:
    using Millis = std::int64_t;
    using Tell = std::function<void(json::object event)>;

    // tell: called with each event; must not change the journal.
    explicit PageJournal(Tell tell, JournalLimits limits = {})
        : tell_(std::move(tell)), limits_(limits) {}

    // Everything, for a page that was just opened.
    json::object state(Millis now) const;

    // Bytes of what waits for a person.
    std::size_t waiting_memory() const noexcept { return waiting_memory_; }
    // A call waits for a person until `until`; nullopt: for as long as it takes. extra: members of
    // the page's "Call" beside those of shown_call().
    void ask(const ToolCall& call, Millis now, std::optional<Millis> until, json::object extra);
    // It waits no longer for the page; what decided() says follows, or `why` is what is known.
    // answer: the page's own, if there was one.
    void leave(const std::string& id, const std::optional<Decision>& answer);
    void forget_left(const std::string& id, Millis now, const std::string& why);
    // Of every call, asked or not.
    void decide(const ToolCall& call, const json::object* edited, const Decision& decision,
                Millis now);
    void end(const std::string& call, std::string_view outcome, Millis took);

    void begin_cell(const std::string& session, const std::string& id, const std::string& code,
                    Millis now);
    // What is printed is told by flush(), and so is what does not fit into a burst: its size.
    void print(const std::string& cell, std::string_view text, bool is_stderr);
    void display(const std::string& cell, const json::object& bundle);
    void end_cell(const std::string& id, std::string_view outcome, Millis now, Millis took);
    // True when there was something to tell.
    bool flush();

    // The newest decided call of the same tool, as "previous" of the page's "Call"; null: none.
    json::value previous(const ToolCall& call) const;
    // Whether nobody has decided about a call that was asked about.
    bool waits(const std::string& id) const;
    // Who decided about a call, for a page that answers too late; empty: unknown.
    std::string settled_by(const std::string& id) const;
    // "allowed by page: once".
    static std::string words_of(const Decision& decision);
    // Calls that were decided, newest last.
    template <class Use>
    void each_decided(Use use) const {
        for (const auto& one : done_) use(one.call);
    }

private:
    struct Pending {
        ToolCall call;
        json::object shown;
        std::size_t memory = 0;
        bool left = false;
        std::string answer;
    };
    struct Done {
        ToolCall call;
        json::object shown;  // "Done" of the page's protocol, without "call"
        json::object shown_call;
        std::string words;
        std::size_t memory = 0;
    };
    struct Piece {
        std::string text;
        bool is_stderr = false;
        json::object image;  // of a display; empty for text
    };
    struct Cell {
        std::string id, session, code, outcome;
        Millis began = 0;
        std::optional<Millis> ended;
        std::deque<Piece> output;
        std::size_t text = 0;  // bytes of its output
        bool cut = false;
        std::deque<Piece> untold;
        std::size_t untold_size = 0, untold_left_out = 0;
    };
    static json::object shown(const Cell& cell);
    static json::object shown(const Done& done);
    static json::object shown(const Piece& piece);
    void add_text(Cell& cell, Piece piece);
    void add_image(Cell& cell, Piece piece);
    void drop_pending(const std::string& id);
    Cell* find(const std::string& id);

    Tell tell_;
    JournalLimits limits_;
    std::map<std::string, Pending> pending_;
    std::deque<std::string> order_;  // of those that wait
    std::deque<Done> done_;
    std::size_t done_memory_ = 0, waiting_memory_ = 0, images_memory_ = 0;
    std::deque<Cell> cells_;
};

}  // namespace ipybox::app
