package nodeconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The stores that archives can be in.
const (
	StoreLocal = "local" // a folder
	StoreS3    = "s3"    // a bucket of Amazon S3, or of a store with the same API
)

// Values that fields may have.
var (
	Stores         = []string{StoreLocal, StoreS3}
	ArchiveFormats = []string{"protobuf", "jsonl", "jsonl.zst"}
	Encryptions    = []string{"AES256", "aws:kms"}
)

// ArchiveStore says where an archive is.
type ArchiveStore struct {
	Store       string      `yaml:"store"`
	StoreConfig StoreConfig `yaml:"storeConfig"`
	// Formats that the archive is written in; a reader tries them in order.
	Formats []string `yaml:"formats,omitempty"`
	// KeyPrefix is what the archive's keys begin with: its reader's must be its
	// writer's.
	KeyPrefix string `yaml:"keyPrefix,omitempty"`
}

// StoreConfig is what a store needs to know: Path of a local one, the rest of one in a
// bucket.
type StoreConfig struct {
	// Path is the folder.
	Path string `yaml:"path,omitempty"`

	Bucket string `yaml:"bucket,omitempty"`
	// Prefix comes before every key in the bucket.
	Prefix string `yaml:"prefix,omitempty"`
	// Region is the environment's when empty.
	Region string `yaml:"region,omitempty"`
	// Endpoint is the URL of a store other than Amazon's; PathStyle puts the bucket in
	// the path of URLs, which is the default with an Endpoint.
	Endpoint  string `yaml:"endpoint,omitempty"`
	PathStyle *bool  `yaml:"pathStyle,omitempty"`
	// CAFile holds the authorities' certificates; the system's when empty.
	CAFile string `yaml:"caFile,omitempty"`
	// Encryption that the store is asked for, and the id of the key for aws:kms.
	Encryption string `yaml:"encryption,omitempty"`
	KMSKey     string `yaml:"kmsKey,omitempty"`
	// Credentials; nil: those of the environment.
	Credentials *StoreCredentials `yaml:"credentials,omitempty"`
	// SingleWriter does without conditional writes, where the store has none: see to it
	// that there is one writer.
	SingleWriter bool `yaml:"singleWriter,omitempty"`
	// Timeout is how long a request may go without a byte passing.
	Timeout time.Duration `yaml:"timeout,omitempty"`
}

// StoreCredentials say who asks the store: a static key, a profile, or the
// environment; and a role that is assumed.
type StoreCredentials struct {
	AccessKeyFile    string `yaml:"accessKeyFile,omitempty"`
	SecretKeyFile    string `yaml:"secretKeyFile,omitempty"`
	SessionTokenFile string `yaml:"sessionTokenFile,omitempty"`
	Profile          string `yaml:"profile,omitempty"`
	RoleARN          string `yaml:"roleARN,omitempty"`
	RoleSessionName  string `yaml:"roleSessionName,omitempty"`
	ExternalID       string `yaml:"externalID,omitempty"`
	// WebIdentityTokenFile holds the token with which the role is assumed.
	WebIdentityTokenFile string `yaml:"webIdentityTokenFile,omitempty"`
	STSEndpoint          string `yaml:"stsEndpoint,omitempty"`
}

// Archive is an archive that readers of the node are caught up from when they are
// behind what its journal holds, and that the node writes if it is told to.
type Archive struct {
	// Name of the archive in status and metrics.
	Name         string `yaml:"name,omitempty"`
	ArchiveStore `yaml:",inline"`
	// Tables that are archived there; with Group, all of the node when empty.
	Tables []Table `yaml:"tables,omitempty"`
	// Group: each table has a prefix of its own below keyPrefix, schema.table, or where
	// keyPrefix has {schema} and {table}. Without it there is one table, and keyPrefix is
	// its own.
	Group bool `yaml:"group,omitempty"`
	// Write has the node write the archive; nil: another does.
	Write *ArchiveWrite `yaml:"write,omitempty"`
}

// ArchiveWrite says how an archive is written.
type ArchiveWrite struct {
	// Interval at which what has changed is written, or as soon as MaxDiffBytes of the
	// node's logs have come.
	Interval     time.Duration `yaml:"interval"`
	MaxDiffBytes Size          `yaml:"maxDiffBytes"`
	// History is net (the last value of each row) or full (every change).
	History string `yaml:"history"`
	// Writer names the writer in the archive; the node's id and the archive's name when
	// empty. Another one is refused there, unless TakeOver is set.
	Writer   string `yaml:"writer,omitempty"`
	TakeOver bool   `yaml:"takeOver,omitempty"`
	// CompressionLevel of zstd.
	CompressionLevel int              `yaml:"compressionLevel"`
	Rebase           ArchiveRebase    `yaml:"rebase,omitempty"`
	Retention        ArchiveRetention `yaml:"retention,omitempty"`
}

// ArchiveRebase says when the next base is written: as soon as one of the bounds is
// passed, but not before MinInterval has. A bound of 0 does not count; with none, those of
// the defaults do.
type ArchiveRebase struct {
	DiffBytes   Size          `yaml:"diffBytes,omitempty"` // stored, of the diffs since the base
	Fraction    float64       `yaml:"fraction,omitempty"`  // of the base's stored bytes
	Churn       float64       `yaml:"churn,omitempty"`     // changes per row of the base
	MaxDiffs    int           `yaml:"maxDiffs,omitempty"`
	MaxAge      time.Duration `yaml:"maxAge,omitempty"`
	MinInterval time.Duration `yaml:"minInterval"`
}

// ArchiveRetention says what is kept: at least Generations, and those that ended within
// Age. One is always kept.
type ArchiveRetention struct {
	Generations int           `yaml:"generations"`
	Age         time.Duration `yaml:"age,omitempty"`
	// Grace is how old an object is that no manifest lists before it is taken for a
	// leftover.
	Grace time.Duration `yaml:"grace"`
}

// ArchiveSource is a source that is an archive.
type ArchiveSource struct {
	ArchiveStore `yaml:",inline"`
	Tables       []Table `yaml:"tables"`
	// Group: as for Archive.
	Group bool `yaml:"group,omitempty"`
	// Follow goes on with what is added to the archive, looking every PollInterval.
	Follow       bool          `yaml:"follow,omitempty"`
	PollInterval time.Duration `yaml:"pollInterval,omitempty"`
	// StatePath is a file that says how far a store on disk has taken the archive in, for people and for tools; with
	// Group each table has one, whose name ends in a dot and schema.table. The node itself goes on from its store.
	StatePath string `yaml:"statePath,omitempty"`
	// Comparator is the order of positions that do not say theirs.
	Comparator string `yaml:"comparator"`
}

// Histories that an archive can have.
const (
	HistoryNet  = "net"
	HistoryFull = "full"
)

// Histories are the values of ArchiveWrite.History.
var Histories = []string{HistoryNet, HistoryFull}

// Defaults of archives.
const (
	DefaultArchiveInterval    = time.Minute
	DefaultArchiveDiffBytes   = 64 << 20
	DefaultArchiveLevel       = 3
	DefaultRebaseInterval     = time.Hour
	DefaultRebaseFraction     = 1.0
	DefaultRebaseChurn        = 2.0
	DefaultRebaseDiffs        = 10_000
	DefaultArchiveGenerations = 2
	DefaultArchiveGrace       = 24 * time.Hour
	DefaultStoreTimeout       = 30 * time.Second
	DefaultArchiveFormat      = "protobuf"
	DefaultPollInterval       = 10 * time.Second
)

func (a *ArchiveStore) setDefaults() {
	if len(a.Formats) == 0 {
		a.Formats = []string{DefaultArchiveFormat}
	}
	if a.Store == StoreS3 {
		def(&a.StoreConfig.Timeout, DefaultStoreTimeout)
		if a.StoreConfig.PathStyle == nil {
			other := a.StoreConfig.Endpoint != ""
			a.StoreConfig.PathStyle = &other
		}
	}
}

func (a *Archive) setDefaults(i int) {
	a.ArchiveStore.setDefaults()
	if a.Name == "" {
		if a.Name = "archive"; i > 0 {
			a.Name = fmt.Sprintf("archive-%d", i+1)
		}
	}
	w := a.Write
	if w == nil {
		return
	}
	def(&w.Interval, DefaultArchiveInterval)
	def(&w.MaxDiffBytes, DefaultArchiveDiffBytes)
	def(&w.History, HistoryNet)
	def(&w.CompressionLevel, DefaultArchiveLevel)
	r := &w.Rebase
	if r.DiffBytes == 0 && r.Fraction == 0 && r.Churn == 0 && r.MaxDiffs == 0 && r.MaxAge == 0 {
		r.Fraction, r.Churn, r.MaxDiffs = DefaultRebaseFraction, DefaultRebaseChurn, DefaultRebaseDiffs
	}
	def(&r.MinInterval, DefaultRebaseInterval)
	def(&w.Retention.Generations, DefaultArchiveGenerations)
	def(&w.Retention.Grace, DefaultArchiveGrace)
}

func (s *ArchiveSource) setDefaults() {
	s.ArchiveStore.setDefaults()
	def(&s.Comparator, DefaultComparator)
	if s.Follow {
		def(&s.PollInterval, DefaultPollInterval)
	}
}

// Prefix is what the keys of a table's archive begin with.
func (a *Archive) Prefix(t Table) string { return tablePrefix(a.KeyPrefix, t, a.Group) }

// Prefix is what the keys of a table's archive begin with.
func (s *ArchiveSource) Prefix(t Table) string { return tablePrefix(s.KeyPrefix, t, s.Group) }

// StateFile is the state file of a table; empty where there is none.
func (s *ArchiveSource) StateFile(t Table) string {
	if s.StatePath == "" || !s.Group {
		return s.StatePath
	}
	return s.StatePath + "." + TableKey(t)
}

func tablePrefix(prefix string, t Table, group bool) string {
	if group && (strings.Contains(prefix, "{schema}") || strings.Contains(prefix, "{table}")) {
		return strings.NewReplacer("{schema}", escapeName(t.Schema), "{table}", escapeName(t.Name)).Replace(prefix)
	}
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	if !group {
		return prefix
	}
	return prefix + TableKey(t) + "/"
}

// maxTableKey is how long the name of a table in keys is at most: names of folders have a limit.
const maxTableKey = 200

// TableKey is the name of a table in keys and in names of files: schema.table. What
// would not go there, and a dot within either, is written as %XX. One that is too long ends in
// %~ and a mark of all of it.
func TableKey(t Table) string {
	key := escapeName(t.Schema) + "." + escapeName(t.Name)
	if len(key) <= maxTableKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	mark := "%~" + hex.EncodeToString(sum[:12])
	return strings.ToValidUTF8(key[:maxTableKey-len(mark)], "") + mark
}

func escapeName(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r <= ' ' || !unicode.IsPrint(r) || r == utf8.RuneError || strings.ContainsRune(`%/\.{}`, r) {
			for _, c := range []byte(string(r)) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (a *ArchiveStore) check(p *problems, path string) {
	oneOf(p, path+".store", a.Store, Stores)
	count(p, path+".formats", len(a.Formats), 1, len(ArchiveFormats))
	unique := uniqueness(p)
	for i, f := range a.Formats {
		at := fmt.Sprintf("%s.formats[%d]", path, i)
		oneOf(p, at, f, ArchiveFormats)
		unique(at, f)
	}
	checkKeyPrefix(p, path+".keyPrefix", a.KeyPrefix)
	switch a.Store {
	case StoreLocal:
		a.StoreConfig.checkLocal(p, path+".storeConfig")
	case StoreS3:
		a.StoreConfig.checkS3(p, path+".storeConfig")
	}
}

// checkKeyPrefix checks names with slashes between and perhaps one at the end.
func checkKeyPrefix(p *problems, path, v string) {
	text(p, path, v, 0, 600)
	if v == "" {
		return
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(v, "/"), "/") {
		if len(name) > maxTableKey {
			p.at(path, fmt.Sprintf("has a name of %d bytes between slashes", len(name)), fmt.Sprintf("use at most %d in each", maxTableKey))
			return
		}
		if name == "" || name == "." || name == ".." || strings.HasPrefix(name, ".tributary") || strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || !unicode.IsPrint(r) }) {
			p.at(path, fmt.Sprintf("must not be %q", v), "write names with a slash after each, such as shop/public.orders/, as the archive's writer has it")
			return
		}
	}
}

func (c *StoreConfig) checkLocal(p *problems, path string) {
	text(p, path+".path", c.Path, 1, 4096)
	for _, f := range c.ofS3() {
		if f.set {
			p.at(path+"."+f.name, "is of a store in a bucket only", "take it out, or set store to s3")
		}
	}
}

type setField struct {
	name string
	set  bool
}

func (c *StoreConfig) ofS3() []setField {
	return []setField{
		{"bucket", c.Bucket != ""},
		{"prefix", c.Prefix != ""},
		{"region", c.Region != ""},
		{"endpoint", c.Endpoint != ""},
		{"pathStyle", c.PathStyle != nil},
		{"caFile", c.CAFile != ""},
		{"encryption", c.Encryption != ""},
		{"kmsKey", c.KMSKey != ""},
		{"credentials", c.Credentials != nil},
		{"singleWriter", c.SingleWriter},
		{"timeout", c.Timeout != 0},
	}
}

func (c *StoreConfig) checkS3(p *problems, path string) {
	if c.Path != "" {
		p.at(path+".path", "is of a local store only", "take it out, or set store to local")
	}
	text(p, path+".bucket", c.Bucket, 1, 255)
	if strings.ContainsAny(c.Bucket, "/ ") {
		p.at(path+".bucket", fmt.Sprintf("must not be %q", c.Bucket), "write its name alone; what follows a slash is the prefix")
	}
	checkKeyPrefix(p, path+".prefix", c.Prefix)
	text(p, path+".region", c.Region, 0, 100)
	checkURL(p, path+".endpoint", c.Endpoint)
	text(p, path+".caFile", c.CAFile, 0, 4096)
	if c.Encryption != "" {
		oneOf(p, path+".encryption", c.Encryption, Encryptions)
	}
	text(p, path+".kmsKey", c.KMSKey, 0, 2048)
	if c.KMSKey != "" && c.Encryption != "aws:kms" {
		p.at(path+".kmsKey", "is set, and encryption is not aws:kms", "set encryption to aws:kms, or take the key out")
	}
	between(p, path+".timeout", c.Timeout, time.Second, 10*time.Minute, "from 1s to 10m")
	if r := c.Credentials; r != nil {
		r.check(p, path+".credentials")
	}
}

func checkURL(p *problems, path, v string) {
	text(p, path, v, 0, 2048)
	if u, err := url.Parse(v); v != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		p.at(path, fmt.Sprintf("must not be %q", v), "write an address that starts with https:// or http://")
	}
}

func (r *StoreCredentials) check(p *problems, path string) {
	if !slices.Contains([]bool{r.AccessKeyFile != "", r.SecretKeyFile != "", r.Profile != "", r.RoleARN != ""}, true) {
		p.at(path, "say nothing", "give accessKeyFile and secretKeyFile, profile or roleARN, or take them out to use those of the environment")
	}
	text(p, path+".accessKeyFile", r.AccessKeyFile, 0, 4096)
	text(p, path+".secretKeyFile", r.SecretKeyFile, 0, 4096)
	if (r.AccessKeyFile == "") != (r.SecretKeyFile == "") {
		p.at(path, "has one of accessKeyFile and secretKeyFile", "give both: neither is of use alone")
	}
	text(p, path+".sessionTokenFile", r.SessionTokenFile, 0, 4096)
	if r.SessionTokenFile != "" && r.AccessKeyFile == "" {
		p.at(path+".sessionTokenFile", "is set, and accessKeyFile is not", "give the files of the key that the token goes with")
	}
	text(p, path+".profile", r.Profile, 0, 200)
	if r.Profile != "" && r.AccessKeyFile != "" {
		p.at(path+".profile", "is set, and so is accessKeyFile", "keep one of them")
	}
	text(p, path+".roleARN", r.RoleARN, 0, 2048)
	for _, f := range []struct{ name, v string }{
		{"roleSessionName", r.RoleSessionName}, {"externalID", r.ExternalID}, {"webIdentityTokenFile", r.WebIdentityTokenFile}, {"stsEndpoint", r.STSEndpoint},
	} {
		text(p, path+"."+f.name, f.v, 0, 4096)
		if f.v != "" && r.RoleARN == "" {
			p.at(path+"."+f.name, "is set, and roleARN is not", "name the role that is to be assumed")
		}
	}
	if r.ExternalID != "" && r.WebIdentityTokenFile != "" {
		p.at(path+".externalID", "is set, and so is webIdentityTokenFile", "take it out: a role that is assumed with a token has none")
	}
	checkURL(p, path+".stsEndpoint", r.STSEndpoint)
}

func (a *Archive) check(p *problems, path string) {
	a.ArchiveStore.check(p, path)
	least := 0
	if !a.Group {
		least = 1
	}
	count(p, path+".tables", len(a.Tables), least, maxTables)
	checkGroup(p, path, a.Tables, a.Group)
	text(p, path+".name", a.Name, 1, 63)
	if a.Write != nil {
		a.Write.check(p, path+".write")
	}
}

func (w *ArchiveWrite) check(p *problems, path string) {
	between(p, path+".interval", w.Interval, time.Second, 24*time.Hour, "from 1s to 24h")
	between(p, path+".maxDiffBytes", w.MaxDiffBytes, 64<<10, 1<<40, "from 64KiB to 1TiB")
	oneOf(p, path+".history", w.History, Histories)
	text(p, path+".writer", w.Writer, 0, 253)
	between(p, path+".compressionLevel", w.CompressionLevel, 1, 22, "from 1 to 22")
	r := &w.Rebase
	between(p, path+".rebase.diffBytes", r.DiffBytes, 0, 1<<50, "0 or more")
	between(p, path+".rebase.fraction", r.Fraction, 0, 1000, "from 0 to 1000")
	between(p, path+".rebase.churn", r.Churn, 0, 1000, "from 0 to 1000")
	between(p, path+".rebase.maxDiffs", r.MaxDiffs, 0, 1_000_000, "from 0 to 1000000")
	between(p, path+".rebase.maxAge", r.MaxAge, 0, 10*365*24*time.Hour, "0 or more")
	between(p, path+".rebase.minInterval", r.MinInterval, time.Second, 10*365*24*time.Hour, "1s or more")
	between(p, path+".retention.generations", w.Retention.Generations, 1, 100_000, "1 or more: there is always one to restore from")
	between(p, path+".retention.age", w.Retention.Age, 0, 100*365*24*time.Hour, "0 or more")
	between(p, path+".retention.grace", w.Retention.Grace, time.Minute, 10*365*24*time.Hour, "1m or more: longer than an upload takes")
}

func checkGroup(p *problems, path string, ts []Table, group bool) {
	tables(p, path+".tables", ts)
	if !group && len(ts) > 1 {
		p.at(path+".tables", fmt.Sprintf("has %d items, and one prefix is of one table", len(ts)), "set group to true, so that each has a prefix of its own below keyPrefix")
	}
}

func (s *ArchiveSource) check(p *problems, path string) {
	s.ArchiveStore.check(p, path)
	count(p, path+".tables", len(s.Tables), 1, maxTables)
	checkGroup(p, path, s.Tables, s.Group)
	oneOf(p, path+".comparator", s.Comparator, Comparators)
	text(p, path+".statePath", s.StatePath, 0, 4096)
	if s.Follow {
		between(p, path+".pollInterval", s.PollInterval, 100*time.Millisecond, 24*time.Hour, "from 100ms to 24h")
	} else if s.PollInterval != 0 {
		p.at(path+".pollInterval", "is set, and follow is not", "set follow to true, or take it out")
	}
}

// checkArchives checks that a table is caught up from one archive.
func (c *Config) checkArchives(p *problems) {
	count(p, "archives", len(c.Archives), 0, maxTables)
	at, all, named := map[Table]string{}, "", map[string]string{}
	for i := range c.Archives {
		a, path := &c.Archives[i], fmt.Sprintf("archives[%d]", i)
		a.check(p, path)
		if first, ok := named[a.Name]; ok {
			p.at(path+".name", fmt.Sprintf("is %q, as that of %s is", a.Name, first), "give each archive a name of its own")
		}
		named[a.Name] = path
		if len(a.Tables) == 0 && a.Group {
			if all != "" {
				p.at(path, "is for all tables, and so is "+all, "keep one of them, or name the tables")
			}
			all = path
		}
		for j, t := range a.Tables {
			if first, ok := at[t]; ok {
				p.at(fmt.Sprintf("%s.tables[%d]", path, j), fmt.Sprintf("%s.%s is also in %s", t.Schema, t.Name, first), "keep one archive for each table")
			}
			at[t] = path
		}
	}
}
