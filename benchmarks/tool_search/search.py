"""Search over MCP tools: BM25F with stems, a synonym table and prefix matches (standard library only)."""
import bisect
import math
import re

# ---------------------------------------------------------------- words

STOP = frozenset("""a an the of to in on at for from by with and or as is are was were be been being am do does did
done have has had having i me my mine we us our ours you your yours he him his she her it its they them their this
that these those there here what which who whom whose when where why how if then else than so such can could may
might must shall should will would not no nor but about into onto over under out up down off again just only
please want need like let get give gave s t d m re ve ll via using used use also very too some any each own
more most other same both want i'd i'm thing things something anything nothing someone somebody one ones called else instead""".split())
# Question words and particles carry meaning only in PHRASES below.


UNSTEMMED = frozenset("news opening listing string thing during evening morning building nothing something anything phoned request test".split())


def stem(w):
    """A light suffix stemmer (about Porter's steps 1a, 1b, 1c and the commonest of 2 to 4)."""
    if len(w) <= 3 or w in UNSTEMMED or not w.isascii() or not w.isalpha():
        return w
    if w.endswith("sses"):
        w = w[:-2]
    elif w.endswith("ies"):
        w = w[:-3] + "y" if len(w) > 4 else w[:-1]
    elif w.endswith(("xes", "ches", "shes", "zes")):
        w = w[:-2]
    elif w.endswith("s") and not w.endswith(("ss", "us", "is")):
        w = w[:-1]
    for suffix in ("ingly", "edly", "ing", "ed"):
        if w.endswith(suffix):
            base = w[: -len(suffix)]
            if len(base) >= 3 and re.search("[aeiouy]", base):
                if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz":
                    base = base[:-1]
                w = base
            break
    for suffix, new in (("ization", "ize"), ("isation", "ize"), ("ication", "icate"), ("ctions", "ct"), ("ction", "ct"),
                        ("ption", "pt"), ("ation", "ate"), ("ally", "al"), ("ly", ""), ("iest", "y"), ("est", "")):
        if w.endswith(suffix) and len(w) - len(suffix) >= 4:
            w = w[: -len(suffix)] + new
            break
    if w.endswith("e") and len(w) > 3:
        w = w[:-1]
    if w.endswith("y") and len(w) > 3:
        w = w[:-1] + "i"
    return w


SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
WORD = re.compile(r"[^\W_]+")


def raw_words(text):
    """Lower-case words; of a word in camel case, its parts and then the whole."""
    out = []
    for w in WORD.findall(text.replace("'s", " ").replace("\u2019s", " ")):
        parts = SPLIT.findall(w)
        out += [p.lower() for p in parts]
        if len(parts) > 1:
            out.append(w.lower())
    return out


_stems = {}


def cached_stem(w):
    s = _stems.get(w)
    if s is None:
        s = _stems[w] = stem(w)
    return s


def words(text):
    return [cached_stem(w) for w in raw_words(text)]


# What a value in a request looks like, and the words it stands for.
SHAPES = [(re.compile(p, re.I), t.split()) for p, t in (
    (r"https?://\S+|\b[\w-]+\.(?:com|org|net|io|dev)\b", "url page website domain"),
    (r"\b[\w/-]+\.(?:png|jpe?g|gif|webp|bmp|svg)\b", "image media file"),
    (r"\b[\w/-]+\.(?:mp3|wav|flac|ogg)\b", "audio media file"),
    (r"\b[\w/-]+\.(?:mp4|mov|mkv|avi)\b", "video media file"),
    (r"\b[\w/-]+\.pdf\b", "pdf file"),
    (r"\b[\w/-]+\.(?:xlsx?|ods)\b", "excel spreadsheet file"),
    (r"(?<![\w.])[\w/-]*\.[a-z][a-z\d]{0,3}\b", "file"),
    (r"[+]\d{3,}", "phone number"),
    (r"-?\d+\.\d+\s*,\s*-?\d+\.\d+", "latitude longitude coordinate"),
    (r"\b\d{1,2}(?::\d\d)?\s*[ap]\.?m\b|\b\d{1,2}:\d\d\b", "time"),
    (r"\bv\d+(?:\.\d+)+\b", "version tag release"),
    (r"\b\d+\s*(?:by|x)\s*\d+\b", "width height size"),
    (r"#[a-z][\w-]*", "channel"),
    (r"\S+@\S+", "email"),
    (r"\"[^\"]*\"", ""),
    (r"\b(?:called|named|titled)\s+\S+", "name"),
    (r"\b\d[\d.,]*\b", ""),
)]


# ---------------------------------------------------------------- general English

# Words that may stand for one another; one group a line.
GROUPS = """
= timezone zone
= shut close closed
= blind disabled accessibility
= repair maintenance
= sync synchronize
= earn income profit revenue
= arrive arrival
= bicycle bike
know relationship friend social network
know relation
table tabular pivot spreadsheet
shut closed state
broken repair fix maintenance
soon upcoming next schedule
come arrive
suggest recommend recommendation similar like
money income profit revenue earning
commit history log
fold merge combine
up update latest
per group aggregate
period range interval between
inside content show detail
hold contain list
contain list
base database
base table
link connect connection
close disconnect
log connect login
connect login open
full usage stat storage
drop remove unlink
take remove
shop store place
tour route trip path
town city place
upright column vertical
sideways horizontal bar
scale axis axes
dual two both double
text sms message
arrive delivered delivery status
spend usage cost expense billing
follow subscriber
area space zone region
bigger upgrade scale plan
kind type category
kind type
correct update fix
thread post
another add new
short summarize summary brief
carry execute
carry plan explain
opening hours detail place
rating review detail
home origin
office destination
automatic automation rule
rule automation
bad restore
copy backup
earlier previous history
hour range history
borrow rent hire bike
value content key
over restart reset new again
did result status
lose loss
made earned
blind screen accessibility
speed performance
look appearance style
style css color font
font typeface style
press keyboard
word term keyword
keyword search
interesting trending
explain describe
cheap lowest
best top recommend
worst bottom lowest
nearest closest near
biggest largest top
newest latest recent
oldest first earliest
first top
last latest previous
favourite favorite like liked
programme program
colour color
centre center
organise organize
cheque payment
= case ticket
= lead prospect
= deal opportunity sale
= remark comment note
= bin trash
= ram memory
= shell terminal command
job position opening vacancy work hiring career
= phone mobile
= mail email inbox
= advertisement ad campaign
= worth value price
= replica copy scale
= health healthy
= source code
= largest greatest max maximum
= smallest minimum min least
= multiply mul multiplication
= divide div dividing division quotient
= subtract sub minus difference
plus add sum
= rotate orientation sideways landscape portrait
= expire expiration ttl vanish
= quota limit
= secret password credential
= wrong diagnose problem
= eat consume usage
= spoken said transcript
= connected client connection
= crypto cryptocurrency coin
= bitcoin crypto
= tweet twitter
= installed install
= halt pause
= divisor gcd
= wiki confluence
= lyric text
= nearby around near
= pic photo
= vm instance
= ebook book
= lunch food meal recipe
= cook recipe meal dish
= dish recipe meal
= flight plane
= parcel package shipment
= salary income
= staff employee
= boss manager
= vacation holiday leave
= teammate colleague member
complaint case ticket issue support
prospect lead customer contact
person contact
firm account
client account
customer account contact
sale deal opportunity order
ad campaign marketing promotion
scrap delete remove
link associate association connect
unlink dissociate remove delete association
worth amount balance value
together total overall portfolio
wallet account balance
own profile my mine
picture profile avatar
screen display
device phone
program app application software
work job task
room space storage quota
share permission grant access let
permission access allow see may
vote poll
prepare draft
publish send post
copy duplicate replica
memory usage cpu consume
command line shell
history before previous old older version past
hold hand
pile deck draw
take draw pick
turn rotate convert switch flip
convert turn transform into
below under child parent beneath
heading title
paragraph block section
keep save store
again rerun repeat restart
everything all
picture screen screenshot
export save dump download
import load
share forward pass
forward send relay
where location directory current
healthy health up alive well status
schedule plan
remind reminder task
alarm timer reminder
plug connect
encrypt sign
money fund wallet
crypto coin token price
rain weather forecast
paper article publication study research
cite citation reference
summary summarize overview condense
shorten summarize
ask query prompt question
book reserve reservation
route path way
car drive vehicle
bike bicycle cycle cycling
foot walk walking
bus transit public
gene variant mutation
drug compound medicine
trial study clinical
patient person
mistake error bug
typo edit
broken error fail
crash exception error
leak memory
backup dump snapshot copy
traffic visitor analytic
visitor traffic user view
statistic stats analytic number performance
popular view top
subscriber follower
follower subscriber
audience follower
mute silence
quiet mute volume
loud volume
night dark
headline news
news article headline
term definition
meaning definition describe
spell check
language translate translation
voice audio speech
speech audio voice
speak voice speech say
hear listen audio
watch view video
camera photo
print pdf
sign signature
stamp time timestamp
clock time
zone timezone
o'clock time
birthday date
holiday calendar
guest invitee attendee
host server
port network
firewall rule security
security vulnerability scan
hack exploit pentest
test suite run
quiz question test
grade score
team player
match game
play run start
win result score
league championship standing
lap telemetry race
driver race
bid order trade
trade order transaction
candle ohlcv historical
token coin
nft collectible token
blockchain chain block
mine owner
rich balance
tax rate
vat tax
expense cost
quote estimate
contract agreement
vendor supplier contact
stock inventory
inventory stock item product
goods product item
product item catalog
plan item product
shipping delivery
refund payment
cheap price low
discount coupon
= delete remove erase drop destroy wipe
= folder directory
= film movie
= bug issue
= ticket issue
= picture image photo photograph pic
= clip video
= repo repository
= project repository
= column field
= row record
= db database
= mongo mongodb
= k8s kubernetes
= bill invoice
= customer client
= company firm business corporation organization
= buy purchase
= song track
= share stock
= railway rail train
= label tag
= deck presentation slide
= tab worksheet
= altered changed modified edited touched
= appointment event meeting
= rename retitle
= outline tree
= answer reply respond response
= search find
= create make add new
= show get read view display see retrieve fetch
= edit update change modify alter
= send post
= booking reservation
= upload put
= choose select pick
= publish post
= comment reply answer
= hover mouseover
= phoned called calls call
= propose suggest
= statement query
= address url
= container pod
= mail email
= pause wait
= restart reboot
= hierarchy nested
= author creator
= picture screenshot
= disk file filesystem
= person user people
= lookup search
= execute run
= erase purge clear
= clean purge clear untracked
= conference meet meeting
= subscription plan
= community subreddit
= room channel
= member participant attendee invitee
= cost price fare
= climate weather temperature
= doc documentation document
= picture graphic chart diagram
= draw chart diagram plot
= cancel delete
= website site page
= slow performance slowest
= checkout working tree
delete remove discard trash bin cancel clear clean
remove kick expel uninvite revoke throw
forget delete remove
get fetch obtain load open look
list show every which enumerate all
create start begin generate build insert compose write init initialize set establish open
add put insert append attach include hang stick
attach attachment file document upload
save write store keep
update adjust rewrite replace swap fix patch correct
move change update
rename name title call
title name heading
search look query locate seek discover hunt browse
send deliver message tell say notify transmit text mail inform
post publish share submit write
propose offer suggest create request
upload push send store ship transfer
download save grab
copy duplicate clone fork replicate
move relocate shift transfer
transfer hand pass
reschedule update postpone delay push shift
stop end terminate quit abort cancel kill
kill stop end terminate
stop pause halt suspend hold
pause delay until sleep hold
resume continue unpause
run launch trigger boot start
execute perform carry invoke
restart reload reset refresh
undo reset revert rollback restore
return back previous
close shut exit end quit finish
open launch navigate visit
navigate visit browse load
finish complete done tick resolve close mark
combine merge join unite integrate
accept merge
accept approve confirm agree handle
dismiss reject decline
approve review feedback
review rate feedback
allow allowed permit permission access touch may
divide split part proportion slice piece
count number total many amount
sum add total aggregate up
aggregate group summarize
calculate compute estimate
size big large storage space byte
duration length long
speed fast tempo bpm beat
slow explain resource intensive long expensive
faster speed optimize index performance optimal
height high elevation altitude tall sea
price rate charge expensive worth fee
money balance fund credit cash payment transaction
pay payment dividend payout
sell sale sold
free available availability open vacant
hour availability time schedule
unpaid due outstanding overdue status
study learn due practice review
subscription membership monthly recurring follow subscribe
phone telephone mobile cell number
call ring dial phone phoned rang
call meeting meet conference video
sms text
mms media photo picture
message chat conversation text dm
recording tape record taped listen
audio sound music song recording voice
music song track audio tune
playlist list
video movie film
like favorite love liked thumb vote
reaction emoji thumb like
upvote like vote
popular trending top hot
trend curve line
leader standing ranking lead leads champion
point score standing
comment remark opinion feedback
reply thread comment
message post
group community club team
invite bring
user member account person
entity person node object device
relation relationship married link connect related
knowledge know remember memory
observation fact note
manager report hierarchy boss organizational
issue problem defect
disruption trouble problem delay outage cancelled
error exception problem failure
fail failure error
cause reason
log print output write wrote
console print log output
history past previous old earlier log
recent latest new last lately
upcoming next future
departure leave depart
arrival arrive
ticket fare price
direction route drive way travel walk
travel trip journey
restaurant place shop cafe hotel
location place position
board position
address street
link url
coordinate latitude longitude
marker pin point location
home house
assistant home
lamp light switch bulb
switch toggle turn checkout
sensor entity state
warm temperature hot cold state
forecast weather
state status condition
pass success result
check verify validate test
ci check status build
machine server instance node host computer device
dyno machine process server worker instance
scale grow resize capacity more
collect scrape gather target
app application program
code source program function script
deploy ship release publish
version release
mark tag flag
commit change save record
stage staged index
write wrote author authorship modified
folder path
file document
article page wiki post
entry record item row document
record document
property field attribute schema
field schema
sheet spreadsheet worksheet excel table
cell box
statement query sql
snapshot screenshot capture snap
capture record
draw generate visualize
graph chart plot network
venn circle overlap overlapping set
pie slice share
scatter dot point relationship
histogram age bracket range bin bucket distribution frequency
radar spider multidimensional dimension compare
fishbone bone cause
sankey flow stream
flow process step
percent percentage
mind idea topic brainstorm
frequency common frequent often
funnel stage drop reduction conversion
page web browser
web internet online
request http call
click press push hit tap
key press keyboard hit enter
type enter write input fill
form field input
select choose pick option
option dropdown choice
mouse hover pointer cursor drag move
hover over
drag pull drop
popup dialog alert prompt
browser window
dark color theme scheme light
appear show shows visible
content text word body
extract take pull get separate
info information metadata detail about property
describe detail explain
profile account
task todo job item
subtask step smaller
deadline due date
date day calendar
schedule calendar date when
season year championship
race event grand prix
convert exchange translate
currency exchange rate euro dollar krone kroner
equity stock share
art painting object artwork museum
apartment flat listing room accommodation stay night checkin
legal valid possible
card flashcard
domain website
bucket storage
object file
worker script
difference diff compare change
changed diff status
similar alike related like
remote origin upstream
stash aside shelve unfinished
replay rebase reapply
branch line
lock block stuck
password credential secret login
expert analyst recommendation advice
advice recommendation suggest
earning profit income revenue
income revenue earning
""".strip().splitlines()

# Turns of phrase and what they stand for.
PHRASES = """
take … off > remove drop delete
take … away > remove delete
take … out > remove extract
put … in > add upload insert
switch … off > off stop action
switch … on > on start action
cut … out > remove extract
sum up > summarize
sums per > aggregate
up to date > update latest sync
according to > by
time zone > timezone
come in > arrival arrive
comes in > arrival arrive
over the last > range history
in the last > range history
make money > income profit
lose money > income profit
write into > type fill
type in > type fill
type into > type fill
how long from > distance duration time
how long to > distance duration time
how far from > distance
is inside > show content detail
what is in > show content list
what is on > list content item
is the > state status
is … shut > state
is … open > state status
is … on > state status
is … off > state status
going on > status activity
what happened > history log event
go wrong > error log
went wrong > error log
as well as > and
by hand > manual
day by day > daily
each day > daily
every day > daily
each week > weekly
each month > monthly
one by one > list
side by side > compare
next to > nearby
close to > nearby
out of date > outdated
what time > time clock
what day > date
what else > similar related
such as > similar
rather than > compare
better than > compare
turn … into > convert
from home > remote
who may > permission access
may see > permission access
let … read > share permission
let … see > share permission
let … use > share permission
give … access > share permission
was spoken > transcript
more copies > scale replica
more machines > scale
bigger machine > scale
what's wrong > diagnose error
is wrong > diagnose error
leave a > create add
leave an > create add
pass … on > share forward
at work > job
do again > restart rerun
back out of > restore
bring back > restore
take … back > restore undo
go back to > undo rollback back
fill in > fill form
fill out > fill form
check out > checkout
log out > logout
sign out > logout
look into > analyze inspect
find out > search get
work out > calculate compute
put together > create combine
cut down > reduce
slow down > slow
speed up > optimize index faster
pick up > get
point out > highlight
keep an eye on > monitor watch
write to > send write
talk to > send message chat
in common > similar overlap
used up > usage
get rid of > delete remove drop
throw … away > delete remove clean
throw … out > delete remove
throw away > delete remove clean
throw out > delete remove
take down > delete remove
take … down > delete remove
give up > release delete
kick … out > remove
put … aside > stash save
hand … over > transfer
look for > search find
look up > search find get
look at > view get
set up > create
make a > create
make me a > create
start a > create
start an > create
sign up > create add register
signed up > invitee attendee register
write down > create add note
tick off > complete
tick … off > complete
turn on > on action
turn off > off action
turn … on > on action
turn … off > off action
thumbs up > like rate reaction
go over > switch review checkout
go to > navigate open
go back > back
shut down > stop
log in > login authenticate
how many > count number
how much > price amount balance
how big > size
how large > size
how long > duration length
how fast > speed tempo
how far > distance
how high > elevation height
how warm > temperature state
how old > age date
how well > analytic statistic performance
how do i drive > direction route
how do i get > direction route
near me > place nearby
who is on > user list member
who was there > attendee participant
who wrote > author authorship blame
who > user
was said > history message transcript
is said > transcript text
did people say > comment review
do people say > comment
is touched > file change
when is > schedule date
when are > schedule date
when was > date metadata info
where > search location
why > explain reason
which > list
version control > git
pr > pull + request
pull request > pull + request
ci > status check
db > database
to do > task
to-do > task
right now > current
at once > multiple
in one go > multiple
several > multiple
belong to > member
still free > available availability
free hours > availability
out of > extract
without touching > fetch
""".strip().splitlines()

# Verbs that say little: their rarity in tool descriptions means nothing.
LIGHT = frozenset(stem(w) for w in """make take put give go come show see say tell have keep call bring turn move
open look find want ask work new one two three four five six seven eight nine ten list thing today without tomorrow yesterday somebody someone""".split())


# What kind of thing a tool does, by a word of its name; what kind of thing a request wants.
KINDS = {
    "create": "create add new insert make generate post append invite start init initialize",
    "delete": "delete remove drop clear purge cancel destroy trash kill terminate release close erase unlink",
    "update": "update edit modify rename set patch change move put write replace upsert mark",
    "send": "send publish reply forward upload push share",
    "read": "get list read show find search fetch retrieve describe view query count check info status history log "
            "details stats lookup explain download open select analyze",
}
KIND_OF_NAME = {stem(w): k for k, ws in KINDS.items() for w in ws.split()}
KIND_OF_REQUEST = {stem(w): k for k, ws in {
    "create": "create add new insert make generate write enter start open begin put book register draw",
    "delete": "delete remove drop erase discard scrap cancel forget purge wipe kick unlink trash destroy",
    "update": "update edit change rewrite fix rename modify alter swap correct move adjust close",
    "send": "send tell mail text publish answer reply hand forward share upload post",
    "read": "show list find look get search read which what who where when how see check compare is are did does do",
}.items() for w in ws.split()}


class Tables:
    def __init__(self, groups=GROUPS, phrases=PHRASES, shapes=SHAPES):
        self.shapes = shapes
        self.groups = {}
        for line in groups:
            strong = line.startswith("= ")
            stems = [stem(m) for m in line.removeprefix("= ").split()]
            for s in stems:
                into = self.groups.setdefault(s, {})
                for x in stems:
                    if x != s:
                        into[x] = strong or into.get(x, False)
        self.phrases = []
        for line in phrases:
            a, b = line.split(" > ")
            self.phrases.append((tuple(a.split()), [[stem(x) for x in part.split()] for part in b.split("+")]))
        self.phrases.sort(key=lambda p: -len(p[0]))
        self.by_first = {}
        for p in self.phrases:
            self.by_first.setdefault(stem(p[0][0]), []).append(p)


def match_phrase(phrase, raw, i, used):
    """Positions of the phrase at i, "…" being one to three words; None if it is not there."""
    at, out = i, []
    for k, p in enumerate(phrase):
        if p == "…":
            for gap in (1, 2, 3, 4):
                if at + gap < len(raw) and cached_stem(raw[at + gap]) == cached_stem(phrase[k + 1]):
                    at += gap
                    break
            else:
                return None
            continue
        if at >= len(raw) or used[at] or (raw[at] != p and cached_stem(raw[at]) != cached_stem(p)):
            return None
        out.append(at)
        at += 1
    return out


# ---------------------------------------------------------------- index

FIELDS = ("name", "server", "first", "rest", "params", "values")
DEFAULT = {
    "name": 2.2, "server": 1.8, "first": 1.5, "rest": 0.65, "params": 0.4, "values": 0.4,
    "k1": 1.05, "b": 0.68, "synonym": 0.8, "strong": 1.0, "phrase": 0.85, "shape": 1.0, "prefix": 0.6,
    "coverage": 0.45, "light": 0.6, "union": 0.45, "namecover": 2.8, "named": 1.6, "same": 1.15, "other": 0.85,
}


def schema_texts(schema):
    names, values = [], []
    stack = [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict) or depth > 3:
            continue
        for name, sub in (node.get("properties") or {}).items() if isinstance(node.get("properties"), dict) else ():
            names.append(name)
            if isinstance(sub, dict):
                values.append(str(sub.get("description") or "")[:200])
                stack.append((sub, depth + 1))
        if isinstance(node.get("items"), dict):
            stack.append((node["items"], depth + 1))
        if isinstance(node.get("enum"), list):
            values += [v for v in node["enum"][:20] if isinstance(v, str)]
    return " ".join(names), " ".join(values)


def sentences(description):
    text = " ".join((description or "").split())
    cut = re.search(r"(?<=[.!?])\s|\sArgs:", text)
    return (text[: cut.start()], text[cut.start():]) if cut else (text, "")


class Index:
    def __init__(self, tools, weights=None, tables=None):
        self.w = dict(DEFAULT, **(weights or {}))
        self.tables = tables or Tables()
        self.ids = [t["server"] + "." + t["name"] for t in tools]
        docs = []
        for t in tools:
            first, rest = sentences(t.get("description"))
            params, values = schema_texts(t.get("inputSchema") or {})
            server = words(t["server"])
            own = [x for x in words(t["name"]) if x not in server] or words(t["name"])
            docs.append((own, server, words(first[:300]), words(rest[:1500]), words(params), words(values[:1500])))
        n = len(docs) or 1
        mean = [sum(len(d[f]) for d in docs) / n or 1.0 for f in range(len(FIELDS))]
        self.postings = {}
        for i, d in enumerate(docs):
            tf = {}
            for f, field in enumerate(FIELDS):
                norm = 1 - self.w["b"] + self.w["b"] * len(d[f]) / mean[f]
                for term in d[f]:
                    tf[term] = tf.get(term, 0.0) + self.w[field] / norm
            for term, x in tf.items():
                self.postings.setdefault(term, []).append((i, x))
        self.n = n
        self.sorted = sorted(self.postings)
        self.doc_names = [frozenset(d[0]) for d in docs]
        self.kinds = [next((KIND_OF_NAME[x] for x in words(t["name"]) if x in KIND_OF_NAME), None) for t in tools]
        self.servers = {}
        for i, d in enumerate(docs):
            for term in d[1]:
                self.servers.setdefault(term, set()).add(i)

    def idf_of(self, df):
        return math.log(1 + (self.n - df + 0.5) / (df + 0.5)) if df else 0.0

    def expand(self, term):
        """term -> {index term: weight}"""
        out = {}
        if term in self.postings:
            out[term] = 1.0
        if len(term) >= 4:  # mongo / mongodb, youtuber / youtube
            i = bisect.bisect_left(self.sorted, term)
            while i < len(self.sorted) and self.sorted[i].startswith(term):
                other = self.sorted[i]
                if other != term and len(term) >= 0.6 * len(other):
                    out[other] = self.w["prefix"] * len(term) / len(other)
                i += 1
            for k in range(4, len(term)):
                if term[:k] in self.postings and k >= 0.7 * len(term):
                    out[term[:k]] = self.w["prefix"] * k / len(term)
        for s, strong in self.tables.groups.get(term, {}).items():
            if s in self.postings:
                out[s] = max(out.get(s, 0), self.w["strong" if strong else "synonym"])
        return out

    def query_units(self, query):
        """[(weight of the unit, {index term: weight}, a word that may name a server)]"""
        units = []
        for pattern, targets in self.tables.shapes:
            if pattern.search(query):
                query = pattern.sub(" ", query)
                units.append((1.0, {s: self.w["shape"] for s in map(stem, targets) if s in self.postings}, ""))
        raw = []
        for w in WORD.findall(query.replace("'s ", " ").replace("\u2019s ", " ")):
            parts = SPLIT.findall(w)
            if len(parts) > 1 and cached_stem(w.lower()) not in self.postings:
                raw += [p.lower() for p in parts]
            else:
                raw.append(w.lower())
        used = [False] * len(raw)
        for i in range(len(raw)):
            candidates = self.tables.by_first.get(cached_stem(raw[i]), ())
            for phrase, targets in sorted(candidates, key=lambda p: (-len(p[0]), p[0][0] != raw[i])):
                at = match_phrase(phrase, raw, i, used)
                if at is not None:
                    for j in at:
                        used[j] = True
                    units += [(1.0, {s: self.w["phrase"] for s in part if s in self.postings}, "") for part in targets]
        for w, u in zip(raw, used):
            if u or w in STOP:
                continue
            s = cached_stem(w)
            units.append((self.w["light"] if s in LIGHT else 1.0, self.expand(s), s))
        return [u for u in units if u[1]]

    def kind(self, query):
        """What a request wants, by its first word or phrase that tells."""
        raw = [w.lower() for w in WORD.findall(query)]
        for i, word in enumerate(raw[:3]):
            for phrase, targets in self.tables.by_first.get(cached_stem(word), ()):
                at = match_phrase(phrase, raw, i, [False] * len(raw)) if len(phrase) > 1 else None
                if at:
                    for t in targets[0]:
                        if t in KIND_OF_NAME:
                            return KIND_OF_NAME[t]
            if word in KIND_OF_REQUEST or cached_stem(word) in KIND_OF_REQUEST:
                return KIND_OF_REQUEST.get(word) or KIND_OF_REQUEST[cached_stem(word)]
        return None

    def search(self, query, limit=5):
        w = self.w
        scores, mass, name_hits = {}, {}, {}
        k1 = w["k1"]
        total = 0.0
        for unit_weight, unit, word in self.query_units(query):
            covered = set()
            for term in unit:
                covered.update(i for i, _ in self.postings[term])
            common = self.idf_of(len(covered))
            best, top = {}, 0.0
            for term, weight in unit.items():
                posting = self.postings[term]
                value = unit_weight * weight * (w["union"] * common + (1 - w["union"]) * self.idf_of(len(posting)))
                if value <= 0:
                    continue
                top = max(top, value)
                server = self.servers.get(term, ()) if weight > w["strong"] - 0.25 else ()
                for i, tf in posting:
                    s = value * tf * (k1 + 1) / (tf + k1)
                    if i in server:
                        s *= w["named"]
                    if s > best.get(i, 0.0):
                        best[i] = s
                    if term in self.doc_names[i]:
                        hits = name_hits.setdefault(i, {})
                        hits[term] = max(hits.get(term, 0.0), weight)
            total += top
            for i, s in best.items():
                scores[i] = scores.get(i, 0.0) + s
                mass[i] = mass.get(i, 0.0) + top
        for i, hits in name_hits.items():
            names = self.doc_names[i]
            all_ = sum(self.idf_of(len(self.postings[t])) for t in names)
            scores[i] = scores.get(i, 0.0) + w["namecover"] * sum(x * self.idf_of(len(self.postings[t])) for t, x in hits.items()) / (all_ or 1)
        c = w["coverage"]
        wanted = self.kind(query)
        if wanted:
            for i in scores:
                if self.kinds[i]:
                    scores[i] *= (w["same"] if self.kinds[i] == wanted else
                                  w["other"] if {self.kinds[i], wanted} & {"read", "delete"} else 1.0)
        ranked = sorted(scores, key=lambda i: (-scores[i] * (1 - c + c * mass[i] / (total or 1)), i))
        return [self.ids[i] for i in ranked[:limit]]
