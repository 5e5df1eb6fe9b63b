package nodeconfig

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Values that fields may have.
var (
	Comparators = []string{"lsn", "number", "bytes"}
	Orderings   = []string{"Total", "PerLog", "PerKey", "Unordered"}
	SSLModes    = []string{SSLDisable, SSLPrefer, SSLRequire, SSLVerifyCA, SSLVerifyFull}
	failbacks   = []string{FailbackAutomatic, FailbackManual}
	Operators   = []string{OperatorEqual, OperatorIn, OperatorPrefix}

	TargetSessionAttrs = []string{TargetAny, TargetReadWrite, TargetReadOnly, TargetPrimary, TargetStandby, TargetPreferStandby}
)

var (
	nodeID     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,198}[A-Za-z0-9])?$`)
	sourceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$`)
	slotName   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

const (
	maxSources    = 16
	maxCandidates = 64
	maxTables     = 512
	maxHosts      = 8
	maxSinks      = 16

	maxPermissions = 256
	maxColumns     = 1600
	maxConditions  = 16
	maxValues      = 256
	maxValue       = 1024
)

func (c *Config) check(p *problems) {
	checkVersion(p, c.Version)
	pattern(p, "node.id", c.Node.ID, nodeID, "give the node a name of letters, digits, dots, dashes and slashes, at most 200, such as shop/edge")
	listen(p, "listen.replication", c.Listen.Replication)
	listen(p, "listen.http", c.Listen.HTTP)
	if c.Listen.HTTP == c.Listen.Replication && !strings.HasSuffix(c.Listen.HTTP, ":0") {
		p.at("listen.http", "is the same as listen.replication", "give each a port of its own")
	}
	c.Storage.check(p)
	between(p, "limits.maxReaders", c.Limits.MaxReaders, 1, 1<<20, "from 1 to 1048576")
	if c.Limits.MaxReaders > 0 {
		between(p, "limits.maxPeerReaders", c.Limits.MaxPeerReaders, 1, c.Limits.MaxReaders, "from 1 to limits.maxReaders")
	}
	between(p, "limits.admitRate", c.Limits.AdmitRate, 1, 100_000, "from 1 to 100000")
	between(p, "limits.maxChannels", c.Limits.MaxChannels, 1, 1<<20, "from 1 to 1048576")
	between(p, "limits.handshakeTimeout", c.Limits.HandshakeTimeout, 100*time.Millisecond, 5*time.Minute, "from 100ms to 5m")
	between(p, "drainTimeout", c.DrainTimeout, time.Millisecond, time.Hour, "from 1ms to 1h")
	count(p, "sources", len(c.Sources), 1, maxSources)

	oneOf(p, "cursors", c.Cursors, []string{CursorsPerOrigin, CursorsShared})
	fanout, written, meshed, tree := false, "", "", ""
	unique := uniqueness(p)
	for i := range c.Sources {
		s, path := &c.Sources[i], fmt.Sprintf("sources[%d]", i)
		pattern(p, path+".name", s.Name, sourceName, "start with a lower case letter and go on with lower case letters, digits and dashes, at most 40")
		unique(path+".name", s.Name)
		switch {
		case !exactlyOne(s.Postgres != nil, s.Fanout != nil, s.Ingest != nil, s.Mesh != nil, s.Archive != nil, s.Children != nil):
			p.at(path, "must have exactly one of postgres, fanout, ingest, mesh, archive and children", "say what the source is")
		case s.Mesh != nil:
			if meshed != "" {
				p.at(path, "is a mesh source, and so is "+meshed, "list all peers in one of them: a session is with a node, not with a source")
			}
			fanout, meshed = true, path
			s.Mesh.check(p, path+".mesh")
			c.checkWhole(p, path+".mesh.tables", s.Mesh.Tables)
		case s.Postgres != nil:
			s.Postgres.check(p, path+".postgres")
		case s.Ingest != nil:
			if written != "" {
				p.at(path, "is an ingest source, and so is "+written, "declare all tables in one of them: what is written goes by the table alone")
			}
			s.Ingest.check(p, path+".ingest", c.Storage.Type)
			if written == "" {
				c.Serve.checkWriters(p, s.Ingest)
			}
			written = path
		case s.Archive != nil:
			s.Archive.check(p, path+".archive")
		case s.Children != nil:
			if tree != "" {
				p.at(path, "is a children source, and so is "+tree, "list all children in one of them: a session is with a node, not with a source")
			}
			fanout, tree = true, path
			checkDialling(p, path+".children", s.Children.TLS, s.Children.TokenFile)
			checkBuffer(p, path+".children", s.Children.PauseBuffer)
		default:
			fanout = true
			s.Fanout.check(p, path+".fanout")
			c.checkWhole(p, path+".fanout.tables", s.Fanout.Tables)
		}
	}
	c.checkTree(p)
	c.checkConflicts(p)
	count(p, "sinks", len(c.Sinks), 0, maxSinks)
	unique = uniqueness(p)
	for i := range c.Sinks {
		path := fmt.Sprintf("sinks[%d]", i)
		c.Sinks[i].check(p, path, c.Storage.Type)
		unique(path+".name", c.Sinks[i].Name)
	}
	c.checkArchives(p)
	c.Serve.check(p)
	if fanout && c.WiringFile == "" {
		p.at("wiringFile", "is missing", "name the file that holds the parents of the fan-out sources, the peers of the mesh and the children")
	}
	text(p, "wiringFile", c.WiringFile, 0, 4096)
}

func exactlyOne(set ...bool) bool {
	n := 0
	for _, b := range set {
		if b {
			n++
		}
	}
	return n == 1
}

func (s *Storage) check(p *problems) {
	oneOf(p, "storage.type", s.Type, []string{StorageMemory, StoragePebble})
	between(p, "storage.journal.maxBytes", s.Journal.MaxBytes, 1<<20, 1<<40, "from 1Mi to 1Ti")
	text(p, "storage.path", s.Path, 0, 4096)
	text(p, "storage.scratchPath", s.ScratchPath, 0, 4096)
	if s.Type != StoragePebble {
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"path", s.Path != ""},
			{"journal.limitBytes", s.Journal.LimitBytes != 0},
			{"journal.readerRetention", s.Journal.ReaderRetention != 0},
			{"cache.maxBytes", s.Cache.MaxBytes != 0},
			{"tombstones.retention", s.Tombstones.Retention != 0},
		} {
			if f.set {
				p.at("storage."+f.name, "is of a pebble store only", "take it out, or set storage.type to pebble")
			}
		}
		return
	}
	if s.Path == "" {
		p.at("storage.path", "is missing", "name the folder in which the store is kept")
	}
	between(p, "storage.journal.limitBytes", s.Journal.LimitBytes, s.Journal.MaxBytes, 1<<42, "from journal.maxBytes to 4Ti")
	between(p, "storage.journal.readerRetention", s.Journal.ReaderRetention, time.Minute, 366*24*time.Hour, "from 1m to 8784h")
	between(p, "storage.cache.maxBytes", s.Cache.MaxBytes, 8<<20, 1<<40, "from 8Mi to 1Ti")
	between(p, "storage.tombstones.retention", s.Tombstones.Retention, time.Minute, 366*24*time.Hour, "from 1m to 8784h")
}

func (s *Postgres) check(p *problems, path string) {
	s.PostgresServer.check(p, path)
	oneOf(p, path+".targetSessionAttrs", s.TargetSessionAttrs, TargetSessionAttrs)
	text(p, path+".publication.name", s.Publication.Name, 1, 63)
	pattern(p, path+".slot", s.Slot, slotName, "use lower case letters, digits and underscores, at most 63")
	count(p, path+".tables", len(s.Tables), 1, maxTables)
	tables(p, path+".tables", s.Tables)
}

func (f *Fanout) check(p *problems, path string) {
	oneOf(p, path+".comparator", f.Comparator, Comparators)
	oneOf(p, path+".ordering", f.Ordering, Orderings)
	checkReading(p, path, f.Tables, f.TLS, f.TokenFile, f.PauseBuffer)
}

// checkWhole checks that a source with a shared cursor takes all.
func (c *Config) checkWhole(p *problems, path string, tables []FanoutTable) {
	if c.Cursors == CursorsShared && len(tables) > 0 {
		p.at(path, "narrows what is read, and cursors is "+CursorsShared, "take the list out, or set cursors to "+CursorsPerOrigin+": a shared cursor covers all logs of a peer whole")
	}
}

func (m *Mesh) check(p *problems, path string) {
	checkReading(p, path, m.Tables, m.TLS, m.TokenFile, m.PauseBuffer)
}

// checkReading checks what is common to sources that read from other nodes.
func checkReading(p *problems, path string, take []FanoutTable, tls *ClientTLS, tokenFile string, buffer PauseBuffer) {
	count(p, path+".tables", len(take), 0, maxTables)
	names := make([]Table, len(take))
	for i, t := range take {
		names[i] = Table{t.Schema, t.Name}
		t.check(p, fmt.Sprintf("%s.tables[%d]", path, i))
	}
	tables(p, path+".tables", names)
	checkDialling(p, path, tls, tokenFile)
	checkBuffer(p, path, buffer)
}

// checkDialling checks how other nodes are dialled.
func checkDialling(p *problems, path string, tls *ClientTLS, tokenFile string) {
	tls.check(p, path+".tls")
	text(p, path+".tokenFile", tokenFile, 0, 4096)
	if tokenFile != "" && tls == nil {
		p.at(path+".tokenFile", "is set, and tls is not", "set tls, if only to {}: a token sent in plain text is no secret")
	}
}

func checkBuffer(p *problems, path string, buffer PauseBuffer) {
	between(p, path+".pauseBuffer.maxBytes", buffer.MaxBytes, 1<<16, 1<<40, "from 64Ki to 1Ti")
}

func (t *FanoutTable) check(p *problems, path string) {
	count(p, path+".columns", len(t.Columns), 0, maxColumns)
	unique := uniqueness(p)
	for i, c := range t.Columns {
		at := fmt.Sprintf("%s.columns[%d]", path, i)
		text(p, at, c, 1, 63)
		unique(at, c)
	}
	count(p, path+".where", len(t.Where), 0, maxConditions)
	for i, c := range t.Where {
		at := fmt.Sprintf("%s.where[%d]", path, i)
		text(p, at+".column", c.Column, 1, 63)
		oneOf(p, at+".operator", c.Operator, Operators)
		count(p, at+".values", len(c.Values), 1, maxValues)
		if c.Operator != OperatorIn && len(c.Values) > 1 {
			p.at(at+".values", fmt.Sprintf("has %d items", len(c.Values)), "give one, or use the operator In")
		}
		for j, v := range c.Values {
			if len(v) > maxValue {
				p.at(fmt.Sprintf("%s.values[%d]", at, j), fmt.Sprintf("is %d bytes long", len(v)), fmt.Sprintf("use at most %d", maxValue))
			}
		}
	}
}

func (w *Wiring) check(p *problems) {
	checkVersion(p, w.Version)
	if w.Epoch == 0 {
		p.at("epoch", "is missing", "give a number from 1 that grows with each change")
	}
	count(p, "sources", len(w.Sources), 0, maxSources)
	unique := uniqueness(p)
	for i := range w.Sources {
		s, path := &w.Sources[i], fmt.Sprintf("sources[%d]", i)
		pattern(p, path+".name", s.Name, sourceName, "use the name of a fan-out, mesh or children source of node.yaml")
		unique(path+".name", s.Name)
		count(p, path+".candidates", len(s.Candidates), 0, maxCandidates)
		ids := uniqueness(p)
		for j, c := range s.Candidates {
			at := fmt.Sprintf("%s.candidates[%d]", path, j)
			text(p, at+".id", c.ID, 1, 300)
			ids(at+".id", c.ID)
			target(p, at+".address", c.Address)
		}
		s.checkChildren(p, path)
		s.Policy.check(p, path+".policy")
	}
	if w.Parents != nil {
		w.Parents.check(p)
	}
}

func (q *Policy) check(p *problems, path string) {
	between(p, path+".unhealthyAfter", q.UnhealthyAfter, 750*time.Millisecond, time.Hour, "from 750ms to 1h")
	between(p, path+".recoverAfter", q.RecoverAfter, time.Millisecond, 24*time.Hour, "from 1ms to 24h")
	oneOf(p, path+".failback", q.Failback, failbacks)
	between(p, path+".maxSwitchesPerHour", q.MaxSwitchesPerHour, 1, 3600, "from 1 to 3600")
}

// CheckWiring says whether w wires exactly the fan-out sources of c. file is
// the name that the Problems use.
func (c *Config) CheckWiring(file string, w *Wiring) error {
	p := &problems{file: file}
	for i := range c.Sources {
		if s := &c.Sources[i]; s.Wired() && w.Source(s.Name) == nil {
			p.at("sources", fmt.Sprintf("has nothing for the source %q", s.Name), "add an item with that name; its candidates may be empty")
		}
	}
	for i := range w.Sources {
		name := w.Sources[i].Name
		if !slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Name == name && s.Wired() }) {
			p.at(fmt.Sprintf("sources[%d].name", i), fmt.Sprintf("%q is not a fan-out, mesh or children source of this node", name), "take it out, or add the source to node.yaml")
		}
	}
	c.checkWiredTree(p, w)
	return p.err()
}

func checkVersion(p *problems, v int) {
	switch {
	case v == 0:
		p.at("version", "is missing", fmt.Sprintf("write version: %d", Version))
	case v != Version:
		p.at("version", fmt.Sprintf("must not be %d", v), fmt.Sprintf("this program reads version %d", Version))
	}
}

func pattern(p *problems, path, v string, re *regexp.Regexp, mend string) {
	switch {
	case v == "":
		p.at(path, "is missing", mend)
	case !re.MatchString(v):
		p.at(path, fmt.Sprintf("must not be %q", v), mend)
	}
}

// text checks length in bytes and that nothing unprintable is in it.
func text(p *problems, path, v string, least, most int) {
	switch {
	case v == "" && least > 0:
		p.at(path, "is missing", "give it a value")
	case len(v) > most:
		p.at(path, fmt.Sprintf("is %d bytes long", len(v)), fmt.Sprintf("use at most %d", most))
	case strings.ContainsFunc(v, unicode.IsControl):
		p.at(path, "holds control characters", "take them out")
	}
}

func oneOf(p *problems, path, v string, allowed []string) {
	if !slices.Contains(allowed, v) {
		p.at(path, fmt.Sprintf("must not be %q", v), "use "+strings.Join(allowed, " or "))
	}
}

func between[T cmp.Ordered](p *problems, path string, v, least, most T, mend string) {
	if v < least || v > most {
		p.at(path, fmt.Sprintf("must not be %v", v), "use a value "+mend)
	}
}

func count(p *problems, path string, n, least, most int) {
	switch {
	case n < least:
		p.at(path, "is empty", fmt.Sprintf("give at least %d", least))
	case n > most:
		p.at(path, fmt.Sprintf("has %d items", n), fmt.Sprintf("give at most %d", most))
	}
}

func uniqueness(p *problems) func(path, v string) {
	seen := map[string]string{}
	return func(path, v string) {
		if first, ok := seen[v]; ok && v != "" {
			p.at(path, fmt.Sprintf("%q is also at %s", v, first), "use each once")
		} else {
			seen[v] = path
		}
	}
}

func tables(p *problems, path string, ts []Table) {
	unique := uniqueness(p)
	for i, t := range ts {
		at := fmt.Sprintf("%s[%d]", path, i)
		text(p, at+".schema", t.Schema, 1, 63)
		text(p, at+".name", t.Name, 1, 63)
		unique(at, t.Schema+"."+t.Name)
	}
}

func listen(p *problems, path, v string) {
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		p.at(path, fmt.Sprintf("must not be %q", v), "write host:port, or :port for every address")
	}
}

// target checks a gRPC target: host:port, with or without dns:/// before it.
func target(p *problems, path, v string) {
	const mend = "write host:port or dns:///host:port"
	if v == "" {
		p.at(path, "is missing", mend)
		return
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(v, "dns:///"))
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || host == "" || strings.ContainsFunc(host, func(r rune) bool { return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r) }) {
		p.at(path, fmt.Sprintf("must not be %q", v), mend)
	}
}
