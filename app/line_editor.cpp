// The prompt of `ipybox repl`, on libedit.
#include "line_editor.hpp"

#include <histedit.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_future.hpp>
#include <cerrno>
#include <chrono>
#include <clocale>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <ipybox/detail/terminal_color.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/terminal_turns.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <mutex>
#include <thread>

#include "cell_input.hpp"
#include "repl_commands.hpp"
#include "table.hpp"
#include "terminal_output.hpp"

namespace ipybox::app {
namespace {

constexpr std::size_t tab_width = 4;
constexpr std::size_t most_listed = 60;                        // completions
constexpr std::size_t largest_cell = std::size_t{1} << 20;     // characters
constexpr std::size_t largest_answer = std::size_t{64} << 10;  // bytes

std::wstring wide(std::string_view text) {
    std::wstring result;
    while (!text.empty()) {
        const auto point = detail::decode_utf8(text);
        result += static_cast<wchar_t>(point.valid ? point.value : 0xFFFD);
        text.remove_prefix(point.size);
    }
    return result;
}

std::string narrow(std::wstring_view text) {
    std::string result;
    for (const wchar_t c : text) detail::append_utf8(result, static_cast<char32_t>(c));
    return result;
}

std::size_t screen_width() {
    const auto columns = terminal_columns(STDIN_FILENO);
    return columns > 0 ? columns : 80;
}

// Pasted or typed: what an editor shows as it is.
bool is_text(wchar_t c) {
    return c == L'\n' || c == L'\t' || !detail::is_deceptive(static_cast<std::uint32_t>(c));
}

// Commands under keys that nobody has: what one of ours ends in, once the screen is as it left it.
struct Inner {
    const wchar_t* keys;
    const wchar_t* binding;
    const wchar_t* command;
};
constexpr Inner inner[] = {{L"\x1b\x1b[n", L"\\e\\e[n", L"ed-newline"},
                           {L"\x1b\x1b[u", L"\\e\\e[u", L"ed-prev-line"},
                           {L"\x1b\x1b[d", L"\\e\\e[d", L"ed-next-line"},
                           {L"\x1b\x1b[p", L"\\e\\e[p", L"ed-prev-history"},
                           {L"\x1b\x1b[q", L"\\e\\e[q", L"ed-next-history"},
                           {L"\x1b\x1b[x", L"\\e\\e[x", L"ed-delete-next-char"},
                           {L"\x1b\x1b[s", L"\\e\\e[s", L"ipybox-stopped"},
                           {L"\x1b\x1b[z", L"\\e\\e[z", L"ipybox-suspended"},
                           {L"\x1b\x1b[l", L"\\e\\e[l", L"ipybox-list"}};
enum InnerCommand {
    new_line,
    line_up,
    line_down,
    history_up,
    history_down,
    delete_next,
    stopped_at_end,
    suspended_at_end,
    list_at_end
};
constexpr wchar_t ctrl_c = 3, ctrl_z = 26;

}  // namespace

struct LineEditor::Request {
    bool cell = true;
    bool hidden = false;
    std::string prompt;
    std::shared_ptr<const bool> over;  // null: it is wanted however long it takes
};

struct LineEditor::Impl : std::enable_shared_from_this<Impl> {
    Impl(asio::any_io_executor e, bool with_color, Complete how, std::function<void()> end_it)
        : executor(std::move(e)),
          signals(executor, SIGWINCH, SIGTSTP),
          changed(executor),
          turn_free(executor),
          complete(std::move(how)),
          cancel(std::move(end_it)),
          color(with_color),
          movable(detail::may_move(std::getenv("TERM"))),
          wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        if (!wake)
            throw Error(errc::io_error,
                        std::string("no descriptor for the prompt: ") + std::strerror(errno));
    }

    // ---- the executor's thread

    asio::any_io_executor executor;
    asio::signal_set signals;
    Event changed, turn_free;
    std::optional<Input> result;

    // ---- both

    Complete complete;
    std::function<void()> cancel;  // on the executor's thread: what `complete` does
    const bool color, movable;
    UniqueFd wake;  // what the other thread waits for beside keys
    std::mutex mutex;
    std::condition_variable asked;
    std::optional<Request> request;
    std::vector<std::string> remembered;  // not in the history yet
    bool reading = false, interrupted = false, resized = false, suspended = false, over = false;
    std::thread thread;

    void rouse() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof one);
    }
    void watch_signals() {
        signals.async_wait([weak = weak_from_this()](boost::system::error_code error, int number) {
            const auto self = weak.lock();
            if (error || !self) return;
            self->take_signal(number);
            self->watch_signals();
        });
    }
    void take_signal(int number) {
        {
            const std::lock_guard lock(mutex);
            if (reading) {
                (number == SIGWINCH ? resized : suspended) = true;
                return rouse();
            }
        }
        if (number == SIGTSTP) ::raise(SIGSTOP);
    }

    // ---- the editor's thread

    EditLine* editor = nullptr;
    HistoryW* history = nullptr;
    std::wstring prompt;
    std::string bytes;  // typed, and not taken yet
    bool stopped = false, pasting = false;
    int behind = 0;                   // how many characters, before at_end()
    std::vector<std::string> listed;  // completions

    void work();
    void open();
    Input edit();
    Input plain_line(const Request& what);
    void enter_history(const std::string& cell);

    enum class Wait { key, stop, suspend, end };
    Wait wait_for_byte(bool edited);
    Wait take_wakes(bool edited);
    bool more_is_typed();
    void redraw();
    unsigned char suspend();
    unsigned char at_end(InnerCommand command);
    unsigned char back_from_end();

    std::wstring_view line() const;
    std::wstring_view before_cursor() const;
    unsigned char push(InnerCommand command);
    unsigned char insert(std::wstring_view text);
    unsigned char enter();
    unsigned char complete_here();
    unsigned char backspace();
    unsigned char paste();
    unsigned char move_to_start();
    unsigned char move_to_end();
    bool stop_is_typed();
    unsigned char list();
    const wchar_t* prompt_text();

    static Impl& of(EditLine* editor) {
        void* self = nullptr;
        el_wget(editor, EL_CLIENTDATA, &self);
        return *static_cast<Impl*>(self);
    }
    static int get_character(EditLine* editor, wchar_t* c);
};

// ---- what libedit calls

int LineEditor::Impl::get_character(EditLine* editor, wchar_t* c) {
    Impl& self = of(editor);
    for (;;) {
        // The rest of a character comes with what is read next.
        while (!self.bytes.empty() && detail::utf8_size(self.bytes[0]) <= self.bytes.size()) {
            const auto point = detail::decode_utf8(self.bytes);
            self.bytes.erase(0, point.size);
            if (!point.valid) continue;
            *c = static_cast<wchar_t>(point.value);
            return 1;
        }
        switch (self.wait_for_byte(true)) {
            case Wait::key:
                break;
            case Wait::stop:
                *c = ctrl_c;
                return self.pasting ? 0 : 1;
            case Wait::suspend:
                *c = ctrl_z;
                if (!self.pasting) return 1;
                break;
            case Wait::end:
                return 0;
        }
    }
}

// Until more bytes are there. edited: what is typed is libedit's.
LineEditor::Impl::Wait LineEditor::Impl::wait_for_byte(bool edited) {
    for (;;) {
        pollfd waiting[] = {{STDIN_FILENO, POLLIN, 0}, {wake.get(), POLLIN, 0}};
        if (::poll(waiting, 2, -1) < 0) {
            if (errno == EINTR) continue;
            return Wait::end;
        }
        if (waiting[1].revents != 0) {
            const auto woken = take_wakes(edited);
            if (woken != Wait::key) return woken;
        }
        if (waiting[0].revents == 0) continue;
        char part[4096];
        const auto size = ::read(STDIN_FILENO, part, sizeof part);
        if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (size <= 0) return Wait::end;
        bytes.append(part, static_cast<std::size_t>(size));
        return Wait::key;
    }
}

// `key`: nothing but keys is waited for.
LineEditor::Impl::Wait LineEditor::Impl::take_wakes(bool edited) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto size = ::read(wake.get(), &count, sizeof count);
    bool away = false, larger = false;
    {
        const std::lock_guard lock(mutex);
        if (interrupted) return Wait::stop;
        away = std::exchange(suspended, false);
        larger = std::exchange(resized, false);
    }
    if (away && edited) return Wait::suspend;
    if (away) ::raise(SIGSTOP);
    if (larger && edited) redraw();
    return Wait::key;
}

bool LineEditor::Impl::more_is_typed() {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    return !bytes.empty() || ::poll(&waiting, 1, 0) > 0;
}

unsigned char LineEditor::Impl::suspend() {
    std::fputs("\n", stdout);
    std::fflush(stdout);
    el_wset(editor, EL_PREP_TERM, 0);
    ::raise(SIGSTOP);
    el_wset(editor, EL_PREP_TERM, 1);
    el_resize(editor);
    return back_from_end();
}

// In the place where it stands, as far as that is known once the terminal has another size.
void LineEditor::Impl::redraw() {
    if (movable) {
        const auto above = before_cursor();
        auto rows = std::count(above.begin(), above.end(), L'\n');
        if (line().find(L'\n') != std::wstring_view::npos) ++rows;  // the prompt's own
        if (rows > 0) std::fprintf(stdout, "\033[%ldA", static_cast<long>(rows));
        std::fputs("\r\033[J", stdout);
        std::fflush(stdout);
    }
    el_resize(editor);
    el_wset(editor, EL_REFRESH);
}

// Goes on behind all that is shown, where `command` may print.
unsigned char LineEditor::Impl::at_end(InnerCommand command) {
    behind = static_cast<int>(line().size() - before_cursor().size());
    el_cursor(editor, behind);
    push(command);
    return CC_CURSOR;
}
// On the line where the terminal's cursor is by now.
unsigned char LineEditor::Impl::back_from_end() {
    el_cursor(editor, -behind);
    el_wset(editor, EL_REFRESH);
    return CC_NORM;
}

std::wstring_view LineEditor::Impl::line() const {
    const auto* info = el_wline(editor);
    return {info->buffer, static_cast<std::size_t>(info->lastchar - info->buffer)};
}
std::wstring_view LineEditor::Impl::before_cursor() const {
    const auto* info = el_wline(editor);
    return {info->buffer, static_cast<std::size_t>(info->cursor - info->buffer)};
}

unsigned char LineEditor::Impl::push(InnerCommand command) {
    el_wpush(editor, inner[command].keys);
    return CC_NORM;
}

unsigned char LineEditor::Impl::insert(std::wstring_view text) {
    if (line().size() + text.size() > largest_cell) return CC_ERROR;
    const std::wstring ended(text);
    return el_winsertstr(editor, ended.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::Impl::enter() {
    const auto rest = line().substr(before_cursor().size());
    const bool on_last_line = rest.find(L'\n') == rest.npos;
    if (on_last_line && is_whole(narrow(line()))) return push(new_line);
    // What is pasted into a terminal that does not say so has blanks of its own.
    const auto blanks =
        more_is_typed() ? std::string() : indentation_after(narrow(before_cursor()));
    return insert(L"\n" + wide(blanks));
}

unsigned char LineEditor::Impl::backspace() {
    const auto before = before_cursor();
    if (before.empty()) return CC_ERROR;
    const auto begun = before.rfind(L'\n') + 1;  // npos + 1 is 0
    const auto column = before.size() - begun;
    const bool indented = column > 0 && before.find_first_not_of(L' ', begun) == before.npos;
    const auto size = indented ? (column - 1) % tab_width + 1 : 1;
    el_wdeletestr(editor, static_cast<int>(size));
    return CC_REFRESH;
}

// Of the line that the cursor is in: libedit's own go to those of the whole text.
unsigned char LineEditor::Impl::move_to_start() {
    const auto before = before_cursor();
    el_cursor(editor, -static_cast<int>(before.size() - (before.rfind(L'\n') + 1)));
    return CC_CURSOR;
}
unsigned char LineEditor::Impl::move_to_end() {
    const auto rest = line().substr(before_cursor().size());
    el_cursor(editor, static_cast<int>(std::min(rest.find(L'\n'), rest.size())));
    return CC_CURSOR;
}

// Ctrl-C, while nobody takes keys: what was typed before it is dropped.
bool LineEditor::Impl::stop_is_typed() {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    char part[4096];
    while (::poll(&waiting, 1, 0) > 0) {
        const auto size = ::read(STDIN_FILENO, part, sizeof part);
        if (size <= 0) break;
        bytes.append(part, static_cast<std::size_t>(size));
    }
    const auto at = bytes.find(static_cast<char>(ctrl_c));
    if (at == bytes.npos) return false;
    bytes.erase(0, at + 1);
    return true;
}

unsigned char LineEditor::Impl::paste() {
    constexpr std::wstring_view end = L"\x1b[201~";
    std::wstring pasted;
    wchar_t c = 0;
    pasting = true;
    while (!pasted.ends_with(end)) {
        if (el_wgetc(editor, &c) != 1) {
            pasting = false;
            return at_end(stopped_at_end);
        }
        if (pasted.size() < 2 * largest_cell) pasted += c;
        // What is too long ends all the same.
        if (pasted.size() == 2 * largest_cell && c == L'~') break;
    }
    pasting = false;
    if (pasted.ends_with(end)) pasted.resize(pasted.size() - end.size());
    std::wstring text;
    for (std::size_t at = 0; at < pasted.size(); ++at) {
        if (pasted[at] == L'\r') {
            if (at + 1 == pasted.size() || pasted[at + 1] != L'\n') text += L'\n';
        } else if (is_text(pasted[at])) {
            text += pasted[at];
        }
    }
    // The person sees all of it before it runs.
    while (text.ends_with(L'\n')) text.pop_back();
    return insert(text);
}

unsigned char LineEditor::Impl::complete_here() {
    const std::string before = narrow(before_cursor());
    const auto begun = before.rfind('\n') + 1;
    if (is_blank(std::string_view(before).substr(begun))) {
        const auto column = before.size() - begun;
        return insert(std::wstring(tab_width - column % tab_width, L' '));
    }
    CodeCompletions found;
    if (before.front() == ':') {
        found = complete_command(before);
    } else {
        try {
            auto asking = complete(before);
            auto answer = asio::co_spawn(executor, std::move(asking), asio::use_future);
            while (answer.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
                if (stop_is_typed()) {
                    asio::post(executor, cancel);
                    return at_end(stopped_at_end);
                }
                const std::lock_guard lock(mutex);
                if (interrupted) return CC_NORM;
            }
            found = answer.get();
        } catch (const std::exception&) {  // a kernel that has ended, say: the next cell says so
            return CC_ERROR;
        }
    }
    if (found.matches.empty()) return CC_ERROR;
    const auto typed = before.size() - found.start;
    std::string common = found.matches.front();
    for (const auto& match : found.matches) {
        const auto differ = std::mismatch(common.begin(), common.end(), match.begin(), match.end());
        common.erase(differ.first, common.end());
    }
    while (!common.empty() && (common.size() < typed || !detail::is_utf8(common)))
        common.pop_back();
    if (common.size() > typed) return insert(wide(std::string_view(common).substr(typed)));
    listed = std::move(found.matches);
    return at_end(list_at_end);
}

// Below what is being typed, which is drawn again behind it.
unsigned char LineEditor::Impl::list() {
    const auto width = screen_width();
    const auto shown = std::min(listed.size(), most_listed);
    std::size_t column = 0;
    for (std::size_t i = 0; i < shown; ++i) column = std::max(column, wide(listed[i]).size() + 2);
    const auto columns = std::max<std::size_t>(1, (width - 1) / column);
    const auto rows = (shown + columns - 1) / columns;
    std::string text = "\n";
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t i = row; i < shown; i += rows) {
            text += listed[i];
            if (i + rows < shown) text += std::string(column - wide(listed[i]).size(), ' ');
        }
        text += '\n';
    }
    if (shown < listed.size()) text += "… and " + std::to_string(listed.size() - shown) + " more\n";
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    return back_from_end();
}

const wchar_t* LineEditor::Impl::prompt_text() {
    const std::wstring sign = L">>>";
    prompt = color ? L"\1\033[32m\1" + sign + L"\1\033[m\1" : sign;
    const auto width = screen_width();
    // Several lines begin below it, at the left, so that they can be copied as they are.
    const bool several = movable && line().find(L'\n') != std::wstring_view::npos;
    prompt += several && width > sign.size() ? std::wstring(width - sign.size(), L' ') : L" ";
    return prompt.c_str();
}

// ---- the thread

void LineEditor::Impl::open() {
    editor = el_init("ipybox", stdin, stdout, stderr);
    history = history_winit();
    if (editor == nullptr || history == nullptr)
        throw Error(errc::io_error, "the terminal cannot be edited at: it has no memory for that");
    HistEventW event;
    history_w(history, &event, H_SETSIZE, 2000);
    history_w(history, &event, H_SETUNIQUE, 1);
    el_wset(editor, EL_CLIENTDATA, this);
    el_wset(editor, EL_SIGNAL, 0);
    // Ctrl-C and Ctrl-Z are keys: what is pasted could have them, too, and is no key.
    el_wset(editor, EL_SETTY, L"-d", L"-isig", nullptr);
    el_wset(editor, EL_HIST, history_w, history);
    el_wset(editor, EL_EDITOR, L"emacs");
    el_wset(editor, EL_GETCFN, &get_character);
    using Prompt = const wchar_t* (*)(EditLine*);
    const Prompt show = [](EditLine* e) { return of(e).prompt_text(); };
    el_wset(editor, EL_PROMPT_ESC, show, L'\1');

    using Command = unsigned char (*)(EditLine*, wint_t);
    const auto add = [this](const wchar_t* name, Command command,
                            std::initializer_list<const wchar_t*> keys) {
        el_wset(editor, EL_ADDFN, name, L"of ipybox", command);
        for (const auto* key : keys) el_wset(editor, EL_BIND, key, name, nullptr);
    };
    add(L"ipybox-enter", [](EditLine* e, wint_t) { return of(e).enter(); }, {L"^M", L"^J"});
    add(L"ipybox-newline", [](EditLine* e, wint_t) { return of(e).insert(L"\n"); },
        {L"\\e^M", L"\\e^J"});
    add(L"ipybox-complete", [](EditLine* e, wint_t) { return of(e).complete_here(); }, {L"^I"});
    add(L"ipybox-backspace", [](EditLine* e, wint_t) { return of(e).backspace(); }, {L"^?", L"^H"});
    add(L"ipybox-paste", [](EditLine* e, wint_t) { return of(e).paste(); }, {L"\\e[200~"});
    add(L"ipybox-up",
        [](EditLine* e, wint_t) {
            const bool first = of(e).before_cursor().find(L'\n') == std::wstring_view::npos;
            return of(e).push(first ? history_up : line_up);
        },
        {L"\\e[A", L"\\eOA", L"^P"});
    add(L"ipybox-down",
        [](EditLine* e, wint_t) {
            const auto rest = of(e).line().substr(of(e).before_cursor().size());
            return of(e).push(rest.find(L'\n') == rest.npos ? history_down : line_down);
        },
        {L"\\e[B", L"\\eOB", L"^N"});
    add(L"ipybox-leave",
        [](EditLine* e, wint_t) -> unsigned char {
            return of(e).line().empty() ? CC_EOF : of(e).push(delete_next);
        },
        {L"^D"});
    add(L"ipybox-stop", [](EditLine* e, wint_t) { return of(e).at_end(stopped_at_end); }, {L"^C"});
    add(L"ipybox-stopped",
        [](EditLine* e, wint_t) -> unsigned char {
            of(e).stopped = true;
            return CC_EOF;
        },
        {});
    add(L"ipybox-suspend", [](EditLine* e, wint_t) { return of(e).at_end(suspended_at_end); },
        {L"^Z"});
    add(L"ipybox-suspended", [](EditLine* e, wint_t) { return of(e).suspend(); }, {});
    add(L"ipybox-list", [](EditLine* e, wint_t) { return of(e).list(); }, {});
    for (const auto& one : inner) el_wset(editor, EL_BIND, one.binding, one.command, nullptr);
    add(L"ipybox-start", [](EditLine* e, wint_t) { return of(e).move_to_start(); },
        {L"^A", L"\\e[H", L"\\eOH", L"\\e[1~"});
    add(L"ipybox-end", [](EditLine* e, wint_t) { return of(e).move_to_end(); },
        {L"^E", L"\\e[F", L"\\eOF", L"\\e[4~"});
    const std::pair<const wchar_t*, const wchar_t*> others[] = {
        {L"^R", L"em-inc-search-prev"}, {L"\\e[3~", L"ed-delete-next-char"},
        {L"\\e[C", L"ed-next-char"},    {L"\\eOC", L"ed-next-char"},
        {L"\\e[D", L"ed-prev-char"},    {L"\\eOD", L"ed-prev-char"},
        {L"\\e[1;5C", L"em-next-word"}, {L"\\e[1;5D", L"ed-prev-word"}};
    for (const auto& [key, command] : others) el_wset(editor, EL_BIND, key, command, nullptr);
}

void LineEditor::Impl::enter_history(const std::string& cell) {
    HistEventW event;
    history_w(history, &event, H_ENTER, wide(cell).c_str());
}

LineEditor::Input LineEditor::Impl::edit() {
    constexpr const char* paste_on = "\033[?2004h";
    constexpr const char* paste_off = "\033[?2004l";
    if (movable) std::fputs(paste_on, stdout);
    std::fflush(stdout);
    stopped = false;
    // libedit itself would show the prompt first, and what is typed at once twice.
    el_wset(editor, EL_PREP_TERM, 1);
    int size = 0;
    const wchar_t* typed = el_wgets(editor, &size);
    Input input;
    if (typed != nullptr && size > 0) {
        input.end = End::typed;
        input.text = narrow({typed, static_cast<std::size_t>(size)});
        if (input.text.ends_with('\n')) input.text.pop_back();
    } else {
        input.end = stopped ? End::interrupted : End::left;
        std::fputs(stopped ? "^C\n" : "\n", stdout);
    }
    if (movable) std::fputs(paste_off, stdout);
    std::fflush(stdout);
    return input;
}

// Without libedit, which shows all that is typed.
LineEditor::Input LineEditor::Impl::plain_line(const Request& what) {
    termios before{};
    const bool known = ::tcgetattr(STDIN_FILENO, &before) == 0;
    if (known && what.hidden) {  // before anybody sees that it is time to type
        termios silent = before;
        silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
        ::tcsetattr(STDIN_FILENO, TCSADRAIN, &silent);
    }
    std::fputs(what.prompt.c_str(), stdout);
    std::fflush(stdout);
    Input input;
    Wait last = Wait::key;
    while (bytes.find('\n') == bytes.npos && bytes.size() < largest_answer && last == Wait::key)
        last = wait_for_byte(false);
    if (known && what.hidden) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    if (last == Wait::stop) {
        input.end = End::interrupted;
    } else if (last == Wait::key) {
        input.end = End::typed;
        const auto end = std::min(bytes.find('\n'), bytes.size());
        for (const wchar_t c : wide(std::string_view(bytes).substr(0, end)))
            if (is_text(c)) detail::append_utf8(input.text, static_cast<char32_t>(c));
        bytes.erase(0, end + 1);
    }
    if (what.hidden || last != Wait::key) std::fputs("\n", stdout);
    std::fflush(stdout);
    return input;
}

void LineEditor::Impl::work() {
    // libedit writes wide characters in the locale's encoding; here, and for this thread alone,
    // that is what all of ipybox prints.
    const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    if (utf8 != nullptr) ::uselocale(utf8);
    for (;;) {
        Request what;
        std::vector<std::string> fresh;
        {
            std::unique_lock lock(mutex);
            asked.wait(lock, [this] { return over || request; });
            if (over) break;
            what = std::move(*request);
            request.reset();
            fresh.swap(remembered);
        }
        Input input;
        try {
            if (editor == nullptr) open();
            for (const auto& cell : fresh) enter_history(cell);
            input = what.cell ? edit() : plain_line(what);
        } catch (const std::exception&) {
            input.end = End::left;
        }
        asio::post(executor, [self = shared_from_this(), input]() mutable {
            self->result = std::move(input);
            self->changed.notify();
        });
    }
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_wend(history);
    if (utf8 != nullptr) {
        ::uselocale(LC_GLOBAL_LOCALE);
        ::freelocale(utf8);
    }
}

// ---- the interface

LineEditor::LineEditor(asio::any_io_executor executor, std::vector<std::string> history, bool color,
                       Complete complete, std::function<void()> cancel)
    : impl_(std::make_shared<Impl>(std::move(executor), color, std::move(complete),
                                   std::move(cancel))) {
    impl_->remembered = std::move(history);
    impl_->watch_signals();
    const std::weak_ptr<Impl> weak = impl_;
    detail::terminal_turns.join(impl_.get(), [weak] {
        const auto held = weak.lock();
        if (!held) return;
        asio::post(held->executor, [weak] {
            if (const auto waiting = weak.lock()) waiting->turn_free.notify();
        });
    });
    impl_->thread = std::thread([impl = impl_.get()] { impl->work(); });
}

LineEditor::~LineEditor() {
    detail::terminal_turns.part(impl_.get());
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->over = impl_->interrupted = true;
    }
    impl_->asked.notify_one();
    impl_->rouse();
    impl_->thread.join();
}

awaitable<LineEditor::Input> LineEditor::read(Request request) {
    const auto impl = impl_;
    for (;;) {
        if (request.over && *request.over) {
            Input none;
            none.end = End::interrupted;
            co_return none;
        }
        if (detail::terminal_turns.take()) break;
        co_await impl->turn_free.wait();
    }
    TerminalOutput::instance().hold_back();
    {
        const std::lock_guard lock(impl->mutex);
        impl->request = std::move(request);
        impl->reading = true;
        impl->interrupted = impl->resized = impl->suspended = false;
        impl->result.reset();
    }
    impl->asked.notify_one();
    while (!impl->result) co_await impl->changed.wait();
    {
        const std::lock_guard lock(impl->mutex);
        impl->reading = false;
    }
    detail::terminal_turns.leave();
    co_return std::move(*impl->result);
}

awaitable<LineEditor::Input> LineEditor::read_cell() { return read(Request()); }

awaitable<LineEditor::Input> LineEditor::read_answer(std::string prompt, bool hidden,
                                                     std::shared_ptr<const bool> over) {
    Request request;
    request.cell = false;
    request.hidden = hidden;
    request.prompt = std::move(prompt);
    request.over = std::move(over);
    return read(std::move(request));
}

void LineEditor::interrupt() {
    {
        const std::lock_guard lock(impl_->mutex);
        if (!impl_->reading) return;
        impl_->interrupted = true;
    }
    impl_->rouse();
}

void LineEditor::remember(std::string cell) {
    const std::lock_guard lock(impl_->mutex);
    impl_->remembered.push_back(std::move(cell));
}

}  // namespace ipybox::app
