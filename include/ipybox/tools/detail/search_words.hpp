#pragma once
// What a search of tools knows of English, as data: words that say nothing, words that stand for
// others, phrases and what they mean. Entries end with ';' or are parted by blanks.
#include <string_view>

namespace ipybox::detail {

// Left out of requests.
inline constexpr std::string_view stop_words = R"(
a an the of to in on at for from by with and or as is are was were be been being am do does did
done have has had having i me my mine we us our ours you your yours he him his she her it its they
them their this that these those there here what which who whom whose when where why how if then
else than so such can could may might must shall should will would not no nor but about into onto
over under out up down off again just only please want need like let get give gave s t d m re ve ll
via using used use also very too some any each own more most other same both thing things something
anything nothing someone somebody one ones called instead
)";

// Say little, though few descriptions have them.
inline constexpr std::string_view light_words = R"(
make take put give go come show see say tell have keep call bring turn move open look find want ask
work new one two three four five six seven eight nine ten list thing today without tomorrow
yesterday somebody someone
)";

// Not cut to a stem.
inline constexpr std::string_view unstemmed_words = R"(
anything building during evening listing morning news nothing opening phoned request something
string test thing
)";

// Words that may stand for each other; in a group that begins with '=', as well as for themselves.
inline constexpr std::string_view word_groups = R"(
=timezone zone; =shut close closed; =blind disabled accessibility; =repair maintenance;
=sync synchronize; =earn income profit revenue; =arrive arrival; =bicycle bike;
know relationship friend social network; know relation; table tabular pivot spreadsheet;
shut closed state; broken repair fix maintenance; soon upcoming next schedule; come arrive;
suggest recommend recommendation similar like; money income profit revenue earning;
commit history log; fold merge combine; up update latest; per group aggregate;
period range interval between; inside content show detail; hold contain list; contain list;
base database; base table; link connect connection; close disconnect; log connect login;
connect login open; full usage stat storage; drop remove unlink; take remove; shop store place;
tour route trip path; town city place; upright column vertical; sideways horizontal bar;
scale axis axes; dual two both double; text sms message; arrive delivered delivery status;
spend usage cost expense billing; follow subscriber; area space zone region;
bigger upgrade scale plan; kind type category; kind type; correct update fix; thread post;
another add new; short summarize summary brief; carry execute; carry plan explain;
opening hours detail place; rating review detail; home origin; office destination;
automatic automation rule; rule automation; bad restore; copy backup; earlier previous history;
hour range history; borrow rent hire bike; value content key; over restart reset new again;
did result status; lose loss; made earned; blind screen accessibility; speed performance;
look appearance style; style css color font; font typeface style; press keyboard;
word term keyword; keyword search; interesting trending; explain describe; cheap lowest;
best top recommend; worst bottom lowest; nearest closest near; biggest largest top;
newest latest recent; oldest first earliest; first top; last latest previous;
favourite favorite like liked; programme program; colour color; centre center; organise organize;
cheque payment; =case ticket; =lead prospect; =deal opportunity sale; =remark comment note;
=bin trash; =ram memory; =shell terminal command; job position opening vacancy work hiring career;
=phone mobile; =mail email inbox; =advertisement ad campaign; =worth value price;
=replica copy scale; =health healthy; =source code; =largest greatest max maximum;
=smallest minimum min least; =multiply mul multiplication; =divide div dividing division quotient;
=subtract sub minus difference; plus add sum; =rotate orientation sideways landscape portrait;
=expire expiration ttl vanish; =quota limit; =secret password credential; =wrong diagnose problem;
=eat consume usage; =spoken said transcript; =connected client connection;
=crypto cryptocurrency coin; =bitcoin crypto; =tweet twitter; =installed install; =halt pause;
=divisor gcd; =wiki confluence; =lyric text; =nearby around near; =pic photo; =vm instance;
=ebook book; =lunch food meal recipe; =cook recipe meal dish; =dish recipe meal; =flight plane;
=parcel package shipment; =salary income; =staff employee; =boss manager; =vacation holiday leave;
=teammate colleague member; complaint case ticket issue support; prospect lead customer contact;
person contact; firm account; client account; customer account contact;
sale deal opportunity order; ad campaign marketing promotion; scrap delete remove;
link associate association connect; unlink dissociate remove delete association;
worth amount balance value; together total overall portfolio; wallet account balance;
own profile my mine; picture profile avatar; screen display; device phone;
program app application software; work job task; room space storage quota;
share permission grant access let; permission access allow see may; vote poll; prepare draft;
publish send post; copy duplicate replica; memory usage cpu consume; command line shell;
history before previous old older version past; hold hand; pile deck draw; take draw pick;
turn rotate convert switch flip; convert turn transform into; below under child parent beneath;
heading title; paragraph block section; keep save store; again rerun repeat restart;
everything all; picture screen screenshot; export save dump download; import load;
share forward pass; forward send relay; where location directory current;
healthy health up alive well status; schedule plan; remind reminder task; alarm timer reminder;
plug connect; encrypt sign; money fund wallet; crypto coin token price; rain weather forecast;
paper article publication study research; cite citation reference;
summary summarize overview condense; shorten summarize; ask query prompt question;
book reserve reservation; route path way; car drive vehicle; bike bicycle cycle cycling;
foot walk walking; bus transit public; gene variant mutation; drug compound medicine;
trial study clinical; patient person; mistake error bug; typo edit; broken error fail;
crash exception error; leak memory; backup dump snapshot copy; traffic visitor analytic;
visitor traffic user view; statistic stats analytic number performance; popular view top;
subscriber follower; follower subscriber; audience follower; mute silence; quiet mute volume;
loud volume; night dark; headline news; news article headline; term definition;
meaning definition describe; spell check; language translate translation; voice audio speech;
speech audio voice; speak voice speech say; hear listen audio; watch view video; camera photo;
print pdf; sign signature; stamp time timestamp; clock time; zone timezone; o'clock time;
birthday date; holiday calendar; guest invitee attendee; host server; port network;
firewall rule security; security vulnerability scan; hack exploit pentest; test suite run;
quiz question test; grade score; team player; match game; play run start; win result score;
league championship standing; lap telemetry race; driver race; bid order trade;
trade order transaction; candle ohlcv historical; token coin; nft collectible token;
blockchain chain block; mine owner; rich balance; tax rate; vat tax; expense cost; quote estimate;
contract agreement; vendor supplier contact; stock inventory; inventory stock item product;
goods product item; product item catalog; plan item product; shipping delivery; refund payment;
cheap price low; discount coupon; =delete remove erase drop destroy wipe; =folder directory;
=film movie; =bug issue; =ticket issue; =picture image photo photograph pic; =clip video;
=repo repository; =project repository; =column field; =row record; =db database; =mongo mongodb;
=k8s kubernetes; =bill invoice; =customer client; =company firm business corporation organization;
=buy purchase; =song track; =share stock; =railway rail train; =label tag;
=deck presentation slide; =tab worksheet; =altered changed modified edited touched;
=appointment event meeting; =rename retitle; =outline tree; =answer reply respond response;
=search find; =create make add new; =show get read view display see retrieve fetch;
=edit update change modify alter; =send post; =booking reservation; =upload put;
=choose select pick; =publish post; =comment reply answer; =hover mouseover;
=phoned called calls call; =propose suggest; =statement query; =address url; =container pod;
=mail email; =pause wait; =restart reboot; =hierarchy nested; =author creator; =picture screenshot;
=disk file filesystem; =person user people; =lookup search; =execute run; =erase purge clear;
=clean purge clear untracked; =conference meet meeting; =subscription plan; =community subreddit;
=room channel; =member participant attendee invitee; =cost price fare;
=climate weather temperature; =doc documentation document; =picture graphic chart diagram;
=draw chart diagram plot; =cancel delete; =website site page; =slow performance slowest;
=checkout working tree; delete remove discard trash bin cancel clear clean;
remove kick expel uninvite revoke throw; forget delete remove; get fetch obtain load open look;
list show every which enumerate all;
create start begin generate build insert compose write init initialize set establish open;
add put insert append attach include hang stick; attach attachment file document upload;
save write store keep; update adjust rewrite replace swap fix patch correct; move change update;
rename name title call; title name heading; search look query locate seek discover hunt browse;
send deliver message tell say notify transmit text mail inform; post publish share submit write;
propose offer suggest create request; upload push send store ship transfer; download save grab;
copy duplicate clone fork replicate; move relocate shift transfer; transfer hand pass;
reschedule update postpone delay push shift; stop end terminate quit abort cancel kill;
kill stop end terminate; stop pause halt suspend hold; pause delay until sleep hold;
resume continue unpause; run launch trigger boot start; execute perform carry invoke;
restart reload reset refresh; undo reset revert rollback restore; return back previous;
close shut exit end quit finish; open launch navigate visit; navigate visit browse load;
finish complete done tick resolve close mark; combine merge join unite integrate; accept merge;
accept approve confirm agree handle; dismiss reject decline; approve review feedback;
review rate feedback; allow allowed permit permission access touch may;
divide split part proportion slice piece; count number total many amount;
sum add total aggregate up; aggregate group summarize; calculate compute estimate;
size big large storage space byte; duration length long; speed fast tempo bpm beat;
slow explain resource intensive long expensive; faster speed optimize index performance optimal;
height high elevation altitude tall sea; price rate charge expensive worth fee;
money balance fund credit cash payment transaction; pay payment dividend payout; sell sale sold;
free available availability open vacant; hour availability time schedule;
unpaid due outstanding overdue status; study learn due practice review;
subscription membership monthly recurring follow subscribe; phone telephone mobile cell number;
call ring dial phone phoned rang; call meeting meet conference video; sms text;
mms media photo picture; message chat conversation text dm; recording tape record taped listen;
audio sound music song recording voice; music song track audio tune; playlist list;
video movie film; like favorite love liked thumb vote; reaction emoji thumb like; upvote like vote;
popular trending top hot; trend curve line; leader standing ranking lead leads champion;
point score standing; comment remark opinion feedback; reply thread comment; message post;
group community club team; invite bring; user member account person;
entity person node object device; relation relationship married link connect related;
knowledge know remember memory; observation fact note;
manager report hierarchy boss organizational; issue problem defect;
disruption trouble problem delay outage cancelled; error exception problem failure;
fail failure error; cause reason; log print output write wrote; console print log output;
history past previous old earlier log; recent latest new last lately; upcoming next future;
departure leave depart; arrival arrive; ticket fare price; direction route drive way travel walk;
travel trip journey; restaurant place shop cafe hotel; location place position; board position;
address street; link url; coordinate latitude longitude; marker pin point location; home house;
assistant home; lamp light switch bulb; switch toggle turn checkout; sensor entity state;
warm temperature hot cold state; forecast weather; state status condition; pass success result;
check verify validate test; ci check status build;
machine server instance node host computer device; dyno machine process server worker instance;
scale grow resize capacity more; collect scrape gather target; app application program;
code source program function script; deploy ship release publish; version release; mark tag flag;
commit change save record; stage staged index; write wrote author authorship modified; folder path;
file document; article page wiki post; entry record item row document; record document;
property field attribute schema; field schema; sheet spreadsheet worksheet excel table; cell box;
statement query sql; snapshot screenshot capture snap; capture record; draw generate visualize;
graph chart plot network; venn circle overlap overlapping set; pie slice share;
scatter dot point relationship; histogram age bracket range bin bucket distribution frequency;
radar spider multidimensional dimension compare; fishbone bone cause; sankey flow stream;
flow process step; percent percentage; mind idea topic brainstorm; frequency common frequent often;
funnel stage drop reduction conversion; page web browser; web internet online; request http call;
click press push hit tap; key press keyboard hit enter; type enter write input fill;
form field input; select choose pick option; option dropdown choice;
mouse hover pointer cursor drag move; hover over; drag pull drop; popup dialog alert prompt;
browser window; dark color theme scheme light; appear show shows visible; content text word body;
extract take pull get separate; info information metadata detail about property;
describe detail explain; profile account; task todo job item; subtask step smaller;
deadline due date; date day calendar; schedule calendar date when; season year championship;
race event grand prix; convert exchange translate; currency exchange rate euro dollar krone kroner;
equity stock share; art painting object artwork museum;
apartment flat listing room accommodation stay night checkin; legal valid possible; card flashcard;
domain website; bucket storage; object file; worker script; difference diff compare change;
changed diff status; similar alike related like; remote origin upstream;
stash aside shelve unfinished; replay rebase reapply; branch line; lock block stuck;
password credential secret login; expert analyst recommendation advice;
advice recommendation suggest; earning profit income revenue; income revenue earning;
loud louder volume; quieter quiet volume;
warm warmer hot hotter cold colder cool temperature thermostat;
french german spanish italian portuguese chinese japanese russian english language translate;
storm hurricane flood alert severe weather; warning alert; jazz rock song music track playlist;
assign hand give responsible; change changed commit history; column field type;
)";

// What is said, and the words that it stands for. "…" is up to three words between; what '+' parts
// is wanted together.
inline constexpr std::string_view search_phrases = R"(
take … off > remove drop delete; take … away > remove delete; take … out > remove extract;
put … in > add upload insert; switch … off > off stop action; switch … on > on start action;
cut … out > remove extract; sum up > summarize; sums per > aggregate;
up to date > update latest sync; according to > by; time zone > timezone; come in > arrival arrive;
comes in > arrival arrive; over the last > range history; in the last > range history;
make money > income profit; lose money > income profit; write into > type fill;
type in > type fill; type into > type fill; how long from > distance duration time;
how long to > distance duration time; how far from > distance; is inside > show content detail;
what is in > show content list; what is on > list content item; is the > state status;
is … shut > state; is … open > state status; is … on > state status; is … off > state status;
going on > status activity; what happened > history log event; go wrong > error log;
went wrong > error log; as well as > and; by hand > manual; day by day > daily; each day > daily;
every day > daily; each week > weekly; each month > monthly; one by one > list;
side by side > compare; next to > nearby; close to > nearby; out of date > outdated;
what time > time clock; what day > date; what else > similar related; such as > similar;
rather than > compare; better than > compare; turn … into > convert; from home > remote;
who may > permission access; may see > permission access; let … read > share permission;
let … see > share permission; let … use > share permission; give … access > share permission;
was spoken > transcript; more copies > scale replica; more machines > scale;
bigger machine > scale; what's wrong > diagnose error; is wrong > diagnose error;
leave a > create add; leave an > create add; pass … on > share forward; at work > job;
do again > restart rerun; back out of > restore; bring back > restore; take … back > restore undo;
go back to > undo rollback back; fill in > fill form; fill out > fill form; check out > checkout;
log out > logout; sign out > logout; look into > analyze inspect; find out > search get;
work out > calculate compute; put together > create combine; cut down > reduce; slow down > slow;
speed up > optimize index faster; pick up > get; point out > highlight;
keep an eye on > monitor watch; write to > send write; talk to > send message chat;
in common > similar overlap; used up > usage; get rid of > delete remove drop;
throw … away > delete remove clean; throw … out > delete remove; throw away > delete remove clean;
throw out > delete remove; take down > delete remove; take … down > delete remove;
give up > release delete; kick … out > remove; put … aside > stash save; hand … over > transfer;
look for > search find; look up > search find get; look at > view get; set up > create;
make a > create; make me a > create; start a > create; start an > create;
sign up > create add register; signed up > invitee attendee register; write down > create add note;
tick off > complete; tick … off > complete; turn on > on action; turn off > off action;
turn … on > on action; turn … off > off action; thumbs up > like rate reaction;
go over > switch review checkout; go to > navigate open; go back > back; shut down > stop;
log in > login authenticate; how many > count number; how much > price amount balance;
how big > size; how large > size; how long > duration length; how fast > speed tempo;
how far > distance; how high > elevation height; how warm > temperature state; how old > age date;
how well > analytic statistic performance; how do i drive > direction route;
how do i get > direction route; near me > place nearby; who is on > user list member;
who was there > attendee participant; who wrote > author authorship blame; who > user;
was said > history message transcript; is said > transcript text; did people say > comment review;
do people say > comment; is touched > file change; when is > schedule date;
when are > schedule date; when was > date metadata info; where > search location;
why > explain reason; which > list; version control > git; pr > pull + request;
pull request > pull + request; ci > status check; db > database; to do > task; to-do > task;
right now > current; at once > multiple; in one go > multiple; several > multiple;
belong to > member; still free > available availability; free hours > availability;
out of > extract; without touching > fetch;
put on > play turn on; drop … a line > send message; drop … a mail > send email;
drop … a message > send message; give … to > assign; who changed > log history blame;
)";

// What a tool does, by a word of its name; of words in several the last counts.
inline constexpr std::string_view kinds_of_names = R"(
create: create add new insert make generate post append invite start init initialize;
delete: delete remove drop clear purge cancel destroy trash kill terminate release close erase
unlink;
update: update edit modify rename set patch change move put write replace upsert mark;
send: send publish reply forward upload push share;
read: get list read show find search fetch retrieve describe view query count check info status
history log details stats lookup explain download open select analyze;
)";

// What a request wants, by one of its first words.
inline constexpr std::string_view kinds_of_requests = R"(
create: create add new insert make generate write enter start open begin put book register draw;
delete: delete remove drop erase discard scrap cancel forget purge wipe kick unlink trash destroy;
update: update edit change rewrite fix rename modify alter swap correct move adjust close;
send: send tell mail text publish answer reply hand forward share upload post;
read: show list find look get search read which what who where when how see check compare is are
did does do;
)";

}  // namespace ipybox::detail
