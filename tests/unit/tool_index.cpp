#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ipybox/tools/detail/tool_index.hpp>
#include <iterator>
#include <sstream>

namespace tool_index_tests {

using namespace ipybox::detail;

namespace {
struct Tool {
    std::string server, name, description;
};

// server.tool: what it does. Written for this test, before its requests were.
constexpr std::string_view tools_text = R"(
calendar.create_event: Creates an event in a calendar. Args: title, start, end, attendees
calendar.list_events: Lists the events of a calendar between two dates.
calendar.delete_event: Deletes an event from a calendar.
calendar.find_free_slots: Finds times at which all attendees are available.
calendar.update_event: Changes the time, title or attendees of an event.
mail.send_message: Sends an email to one or more recipients.
mail.search_messages: Searches the mailbox by sender, subject or date.
mail.mark_as_spam: Marks a message as spam and moves it to the junk folder.
mail.add_label: Adds a label to a message.
files.read_file: Reads the contents of a file.
files.write_file: Writes text to a file, replacing what was there.
files.list_directory: Lists the files in a directory with their sizes.
files.move_file: Moves or renames a file.
files.create_directory: Creates a directory.
files.delete_file: Deletes a file.
git.commit: Records staged changes with a message.
git.log: Shows the history of commits.
git.diff: Shows changes between commits or the working tree.
git.create_branch: Creates a branch at a commit.
git.push: Uploads commits to a remote repository.
git.clone: Clones a remote repository into a directory.
tracker.create_issue: Opens an issue in a project.
tracker.close_issue: Closes an issue.
tracker.assign_issue: Assigns an issue to a user.
tracker.add_comment: Adds a comment to an issue.
tracker.search_issues: Searches issues by text, state or assignee.
chat.post_message: Posts a message to a channel.
chat.list_channels: Lists the channels of the workspace.
chat.upload_file: Uploads a file to a channel.
chat.get_channel_history: Fetches messages and events from a channel.
chat.invite_user: Invites a user to a channel.
weather.get_forecast: Returns the weather forecast for a location.
weather.get_alerts: Returns severe weather alerts for a region.
maps.get_directions: Returns a route between two places by car, bicycle or foot.
maps.find_places: Finds places such as restaurants near a location.
maps.geocode: Converts an address to latitude and longitude.
music.play_track: Starts playback of a track.
music.pause_playback: Pauses playback.
music.create_playlist: Creates an empty playlist.
music.add_to_playlist: Adds tracks to a playlist.
music.set_volume: Sets the playback volume in percent.
db.run_query: Runs an SQL query and returns the rows.
db.list_tables: Lists the tables of the database.
db.describe_table: Returns the columns and types of a table.
db.create_index: Creates an index on columns of a table.
browser.navigate: Opens a URL in the browser.
browser.click: Clicks on an element of the page.
browser.take_screenshot: Takes a screenshot of the page.
browser.fill_form: Fills in the fields of a form.
home.turn_on_light: Turns on a light in a room.
home.set_temperature: Sets the target temperature of a thermostat.
home.get_state: Returns the state of a device or sensor.
home.lock_door: Locks a door.
pay.create_invoice: Creates an invoice for a customer.
pay.refund_payment: Refunds a payment fully or in part.
pay.list_transactions: Lists the transactions of an account.
pay.get_balance: Returns the balance of an account.
shop.search_products: Searches the products of the shop by keyword.
shop.track_order: Returns the delivery status of an order.
shop.cancel_order: Cancels an order that was not shipped yet.
images.resize_image: Changes the width and height of an image.
images.generate_image: Generates an image from a description in text.
text.translate: Translates text into another language.
text.summarize: Summarizes a long text.
convert.currency: Converts an amount from one currency to another.
convert.timezone: Converts a time between time zones.
)";

// A request: the tools of which one is right.
constexpr std::string_view requests_text = R"(
set up a meeting with Bob tomorrow at 3pm: calendar.create_event
what is on my schedule next week: calendar.list_events
when is everybody available for an hour: calendar.find_free_slots
remove the appointment on Friday from my calendar: calendar.delete_event
drop Ann a mail that I'm late: mail.send_message
find the emails from my boss: mail.search_messages
what does notes.txt say: files.read_file
save this as todo.md: files.write_file
which files are in my downloads folder: files.list_directory
call report.docx final.docx instead: files.move_file
make a new folder for photos: files.create_directory
erase old.log from disk: files.delete_file
who changed the code last week: git.log
upload my commits to origin: git.push
get a copy of https://example.com/repo.git: git.clone
report a bug in the project: tracker.create_issue
give this ticket to Ann: tracker.assign_issue
leave a remark on the ticket: tracker.add_comment
which bugs are still open: tracker.search_issues
tell #general that the build is done: chat.post_message
what was said in #support today: chat.get_channel_history
bring Carol into the channel: chat.invite_user
will it rain in Paris tomorrow: weather.get_forecast
is there a storm warning: weather.get_alerts
how do I get to the airport by bike: maps.get_directions
somewhere to eat near the station: maps.find_places
where is 48.85, 2.35: maps.geocode
put on some jazz: music.play_track
stop the music: music.pause_playback
make it louder: music.set_volume
start a list of songs: music.create_playlist
how many orders are in the database: db.run_query
which columns does customers have: db.describe_table
open www.example.com: browser.navigate
press the login button: browser.click
capture what the page looks like: browser.take_screenshot
switch on the kitchen lamp: home.turn_on_light
make the living room warmer: home.set_temperature
bill the customer for 100 euros: pay.create_invoice
give the customer his money back: pay.refund_payment
how much money is in my account: pay.get_balance
has my parcel arrived: shop.track_order
I don't want order 123 any more: shop.cancel_order
make logo.png 100 by 100: images.resize_image
draw a picture of a cat: images.generate_image
say this in French: text.translate
shorten this article: text.summarize
how many dollars are 50 euros: convert.currency
)";

std::vector<std::pair<std::string, std::string>> lines(std::string_view text) {
    std::vector<std::pair<std::string, std::string>> all;
    std::istringstream in{std::string(text)};
    for (std::string line; std::getline(in, line);)
        if (const auto colon = line.rfind(": "); colon != line.npos) {
            const auto first = text.data() == tools_text.data() ? line.find(": ") : colon;
            all.emplace_back(line.substr(0, first), line.substr(first + 2));
        }
    return all;
}
std::vector<Tool> everyday_tools() {
    std::vector<Tool> tools;
    for (const auto& [name, does] : lines(tools_text))
        tools.push_back({name.substr(0, name.find('.')), name.substr(name.find('.') + 1), does});
    return tools;
}
std::vector<SearchedTool> searched(const std::vector<Tool>& tools) {
    std::vector<SearchedTool> all;
    for (const auto& tool : tools) all.push_back({tool.server, tool.name, tool.description});
    return all;
}
std::string found(const std::vector<Tool>& tools, std::string_view query, std::size_t limit = 3) {
    std::string names;
    for (const auto i : ToolIndex(searched(tools)).search(query, limit))
        names += tools[i].server + "." + tools[i].name + " ";
    return names;
}
std::string stem(std::string word) { return stem_of(std::move(word)); }
}  // namespace

BOOST_AUTO_TEST_SUITE(tool_index)

BOOST_AUTO_TEST_CASE(plain_requests_find_the_right_tool_among_the_first_three) {
    const auto tools = everyday_tools();
    const ToolIndex index(searched(tools));
    std::size_t right = 0;
    const auto requests = lines(requests_text);
    BOOST_REQUIRE(requests.size() == 48u);
    for (const auto& [request, wanted] : requests) {
        bool hit = false;
        std::string answer;
        for (const auto i : index.search(request, 3)) {
            const auto name = tools[i].server + "." + tools[i].name;
            answer += name + " ";
            hit = hit || (" " + wanted + " ").find(" " + name + " ") != std::string::npos;
        }
        BOOST_TEST_MESSAGE((hit ? "+ " : "- ") << request << " -> " << answer);
        right += hit;
    }
    BOOST_TEST(100 * right >= 95 * requests.size(), right << " of " << requests.size());
}

BOOST_AUTO_TEST_CASE(the_tools_of_public_servers_are_found) {
    const char* support = std::getenv("IPYBOX_TEST_SUPPORT");
    BOOST_REQUIRE(support != nullptr);
    const auto folder = std::filesystem::path(support) / "../../benchmarks/tool_search";
    const auto read = [&](const char* name) {
        std::ifstream file(folder / name);
        return boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {})).as_array();
    };
    const auto listed = read("tools.json"), requests = read("requests.json");
    BOOST_REQUIRE(listed.size() == 500u);
    BOOST_REQUIRE(requests.size() == 200u);
    std::vector<boost::json::object> schemas(listed.size());
    std::vector<SearchedTool> tools;
    for (std::size_t i = 0; i < listed.size(); ++i) {
        const auto& tool = listed[i].as_object();
        boost::json::object properties;
        for (const auto word : written_words(string_of(tool, "parameters"), 1000))
            properties[word] = boost::json::object();
        schemas[i]["properties"] = std::move(properties);
        tools.push_back({string_of(tool, "server"), string_of(tool, "name"),
                         string_of(tool, "description"), &schemas[i]});
    }
    const ToolIndex index(tools);
    std::size_t right = 0;
    for (const auto& one : requests) {
        bool hit = false;
        for (const auto i : index.search(string_of(one.as_object(), "request"), 3))
            for (const auto& wanted : one.at("tools").as_array())
                hit = hit || wanted.as_string() ==
                                 std::string(tools[i].server) + "." + std::string(tools[i].name);
        right += hit;
    }
    BOOST_TEST(right >= 190u);
}

BOOST_AUTO_TEST_CASE(words_are_compared_by_stems_and_parts) {
    for (const auto& [word, expected] :
         std::vector<std::pair<std::string, std::string>>{{"messages", "messag"},
                                                          {"message", "messag"},
                                                          {"queries", "queri"},
                                                          {"query", "queri"},
                                                          {"stopped", "stop"},
                                                          {"boxes", "box"},
                                                          {"classes", "class"},
                                                          {"pass", "pass"},
                                                          {"creating", "creat"},
                                                          {"created", "creat"},
                                                          {"news", "news"},
                                                          {"größen", "größen"}})
        BOOST_TEST(stem(word) == expected);
    std::string parts;
    for (const auto part : parts_of_word("getHTTPServerV2größe")) parts += std::string(part) + "|";
    BOOST_TEST(parts == "get|HTTP|Server|V|2|gr|öß|e|");
    std::string words;
    for (const auto word : written_words("Bob's x-ray – \xff«Öl»!", 10))
        words += std::string(word) + "|";
    BOOST_TEST(words == "Bob|x|ray|Öl|");
    BOOST_TEST(lower_word("ÄÖÜ ABC ЯЖ") == "äöü abc яж");
}

BOOST_AUTO_TEST_CASE(values_stand_for_what_they_are) {
    const auto shapes = [](const char* query) {
        const QueryShapes found{std::string(query)};
        std::string all = found.rest() + "=";
        for (const auto meaning : found.found()) all += std::string(meaning) + ";";
        return all;
    };
    BOOST_TEST(shapes("open https://a.b/c?d now") == "open   now=url page website domain;");
    BOOST_TEST(shapes("see img/a.png") == "see  =image media file;");
    BOOST_TEST(shapes("see main.cpp") == "see  =file;");
    BOOST_TEST(shapes("at 3:30 pm or 5pm") == "at   or  =time;");
    BOOST_TEST(shapes("from 1.5, -2.25 to me@xy") ==
               "from   to  =latitude longitude coordinate;"
               "email;");
    BOOST_TEST(shapes("100 x 200, v1.2.3, +4912345 and 17") ==
               " ,  ,   and  =phone number;version tag release;width height size;");
    BOOST_TEST(shapes("\"it\" in #dev-ops") == "  in  =channel;");
    BOOST_TEST(shapes("a folder called \xff") == "a folder  =name;");
}

BOOST_AUTO_TEST_CASE(several_wordings_are_better_than_one) {
    const auto tools = everyday_tools();
    BOOST_TEST(found(tools, "zzz\nrefund\n\nscreenshot of the page", 2) ==
               "pay.refund_payment browser.take_screenshot ");
    BOOST_TEST(found(tools, "?!") == "");
    BOOST_TEST(found(tools, "") == "");
    BOOST_TEST(found({}, "refund") == "");
    // Which may be among them is asked of the caller.
    const ToolIndex index(searched(tools));
    const auto none = index.search("refund a payment", 5, [](std::size_t) { return false; });
    BOOST_TEST(none.empty());
}

BOOST_AUTO_TEST_CASE(what_hostile_servers_write_is_bounded) {
    // Each word of the descriptions is another one, and all names are made of the request's words.
    std::string endless(1u << 20, 'x');
    for (std::size_t i = 0; i < endless.size(); i += 7) endless[i] = ' ';
    std::vector<Tool> tools;
    for (int i = 0; i < 20'000; ++i) {
        std::string words;
        for (int k = 0; k < 60; ++k) words += "w" + std::to_string(i * 60 + k) + " ";
        tools.push_back({"bad", "send_mail_file_page_image_" + std::to_string(i), words});
    }
    tools[5].description = endless;
    tools.push_back({"good", "brew_coffee", "Brews a cup of coffee."});
    const ToolIndex index(searched(tools));
    // The words of names are kept however many others there are.
    const auto coffee = index.search("brew coffee", 3);
    BOOST_REQUIRE(!coffee.empty());
    BOOST_TEST(tools[coffee.front()].name == "brew_coffee");
    std::string query;
    while (query.size() < (1u << 20)) query += "send mail file page image ";
    BOOST_TEST(index.search(query, 50).size() == 50u);
    BOOST_TEST(index.search(std::string(1u << 20, 'a'), 50).size() <= 50u);
    BOOST_TEST(index.search(std::string(1u << 20, '-'), 50).empty());
    BOOST_TEST(index.search(std::string(1u << 20, '\xff'), 50).empty());
}

BOOST_AUTO_TEST_CASE(schemas_count_and_their_nesting_is_bounded) {
    namespace json = boost::json;
    const auto schema = json::parse(R"({"type": "object", "properties": {
        "zebra": {"description": "How many stripes", "enum": ["plains", 5, "mountain"]},
        "wrong": 5, "deep": {"items": {"properties": {"giraffe": {}}}}}})");
    std::vector<SearchedTool> tools{{"a", "one", "x"}, {"a", "two", "x"}};
    tools[1].schema = &schema.get_object();
    const ToolIndex index(tools);
    for (const char* word : {"zebras", "stripe", "mountain", "giraffe"}) {
        const auto hits = index.search(word, 3);
        BOOST_REQUIRE(hits.size() == 1u);
        BOOST_TEST(hits[0] == 1u);
    }
    json::object nested;
    for (int i = 0; i < 5000; ++i)
        nested = json::object{{"items", json::object(std::move(nested))}};
    tools[0].schema = &nested;
    BOOST_TEST(ToolIndex(tools).search("zebra", 3).size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tool_index_tests
