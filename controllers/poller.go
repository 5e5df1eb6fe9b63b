package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// poller asks the pods of all nodes for their status documents.
type poller struct {
	reader   client.Reader
	board    *board
	interval time.Duration
	http     *http.Client

	// last holds, per pod, what it said and when. A pod that does not answer for
	// a while is taken at its last word for forgetAfter.
	mu   sync.Mutex
	last map[podID]report
}

type podID struct{ namespace, name, uid string }

type report struct {
	doc *nodeconfig.Statusz
	at  time.Time
}

// asked selects the pods that are asked: those of nodes, and of exports.
var asked = func() labels.Selector {
	r, err := labels.NewRequirement(workload.LabelName, selection.In, []string{workload.NodeName, workload.ExportName})
	if err != nil {
		panic(err) // it is the same each time
	}
	return labels.NewSelector().Add(*r)
}()

const (
	pollTimeout = 2 * time.Second
	maxPolls    = 32
	maxStatusz  = 8 << 20
	// forgetAfter is how many intervals a silent pod's last word counts.
	forgetAfter = 4
)

func newPoller(reader client.Reader, b *board, interval time.Duration) *poller {
	return &poller{
		reader: reader, board: b, interval: interval, last: map[podID]report{},
		http: &http.Client{Timeout: pollTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}},
	}
}

// NeedLeaderElection: only the manager that writes status asks for it.
func (p *poller) NeedLeaderElection() bool { return true }

// Start polls until ctx ends.
func (p *poller) Start(ctx context.Context) error {
	defer p.http.CloseIdleConnections()
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	for {
		if err := p.poll(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *poller) poll(ctx context.Context) error {
	var pods corev1.PodList
	if err := p.reader.List(ctx, &pods, client.MatchingLabelsSelector{Selector: asked}); err != nil {
		return fmt.Errorf("cannot list the pods of nodes: %w", err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	var g errgroup.Group
	g.SetLimit(maxPolls)
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.PodIP != "" && pod.Status.Phase == corev1.PodRunning {
			g.Go(func() error { p.ask(ctx, pod); return nil })
		}
	}
	_ = g.Wait() // ask returns no errors: a pod that does not answer is no fault here
	h := p.collect(pods.Items, time.Now())
	p.board.setObserved(h.nodes)
	p.board.setMembers(h.members)
	p.board.setRelays(h.relays)
	return nil
}

func idOf(pod *corev1.Pod) podID { return podID{pod.Namespace, pod.Name, string(pod.UID)} }

func nodeOf(pod *corev1.Pod) topology.Key {
	return topology.Key{Namespace: pod.Namespace, Name: pod.Labels[workload.LabelInstance]}
}

func (p *poller) ask(ctx context.Context, pod *corev1.Pod) {
	doc, err := p.get(ctx, pod)
	if err != nil {
		pollFailures.Inc()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[idOf(pod)] = report{doc, time.Now()}
}

func (p *poller) get(ctx context.Context, pod *corev1.Pod) (*nodeconfig.Statusz, error) {
	url := "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(nodeconfig.DefaultHTTPPort)) + "/statusz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	doc := &nodeconfig.Statusz{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatusz)).Decode(doc); err != nil {
		return nil, fmt.Errorf("%s does not answer with a status document: %w", url, err)
	}
	if want := nodeOf(pod).String(); doc.Node != want { // an address that another pod has by now
		return nil, fmt.Errorf("%s is of the node %s, not of %s", url, doc.Node, want)
	}
	return doc, nil
}

// heard is what the pods say, by node.
type heard struct {
	nodes   map[topology.Key]*observed
	members map[topology.Key]*heardMember // of meshes
	relays  map[topology.Key]*heardRelay  // of trees, and their leaves
}

// collect puts the reports of the pods together by node, and forgets pods that
// are gone or have been silent for long.
func (p *poller) collect(pods []corev1.Pod, now time.Time) heard {
	p.mu.Lock()
	defer p.mu.Unlock()
	docs := map[topology.Key][]*nodeconfig.Statusz{}
	there := map[podID]bool{}
	for i := range pods {
		pod := &pods[i]
		id := idOf(pod)
		r, ok := p.last[id]
		if !ok || pod.DeletionTimestamp != nil || now.Sub(r.at) > forgetAfter*p.interval {
			continue
		}
		there[id] = true
		k := nodeOf(pod)
		docs[k] = append(docs[k], r.doc)
	}
	for id := range p.last {
		if !there[id] {
			delete(p.last, id)
		}
	}
	out := heard{map[topology.Key]*observed{}, map[topology.Key]*heardMember{}, map[topology.Key]*heardRelay{}}
	for k, ds := range docs {
		out.nodes[k] = observe(ds)
		last := ds[len(ds)-1] // members and relays have one pod
		if h := hearMember(last); h != nil {
			out.members[k] = h
		}
		if h := hearRelay(last); h != nil {
			out.relays[k] = h
		}
	}
	return out
}
