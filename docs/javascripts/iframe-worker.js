// Browsers refuse workers in pages that are opened from a disk. The search needs one: there, a hidden
// frame runs the same script. The name tells the site builder not to fetch its own from a network.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.queue = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.onload = () => this.start(new URL(address, document.baseURI));
      document.body.append(this.frame);
    }

    start(address) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data });
      const script = inside.document.createElement("script");
      script.src = address;
      script.onerror = (event) => this.onerror?.(event);
      script.onload = () => {
        this.inside = inside;
        for (const data of this.queue.splice(0)) this.postMessage(data);
      };
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.inside) setTimeout(() => this.inside?.onmessage?.({ data }));
      else this.queue.push(data);
    }

    terminate() {
      this.inside = undefined;
      this.frame.remove();
    }
  };
}
